// SPDX-License-Identifier: Apache-2.0
// fluvial run on the bundled model: streaming, JSON, stop strings, seeds, backends, Ctrl-C, and every wrong input.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli_testkit.h"

extern char** environ;

namespace fluvial::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class RunTest : public CliTest {
 protected:
  const std::string model_ = Source("models/demo-random-gdn");

  Json RunJson(const std::string& options, const std::string& environment = "") {
    const Ran r = Run("run " + model_ + " --json " + options, environment);
    EXPECT_EQ(r.status, 0) << options << "\n" << r.err;
    EXPECT_EQ(r.err, "") << options;
    return Json::parse(r.out, nullptr, false);
  }
};

TEST_F(RunTest, JsonHasTheDocumentedKeys) {
  const Json j = RunJson("--prompt-ids 5,6,7 --max-tokens 4 --temperature 0 --ignore-eos");
  EXPECT_EQ(j["prompt_token_ids"], Json({5, 6, 7}));
  EXPECT_EQ(j["token_ids"].size(), 4u);
  EXPECT_TRUE(j["text"].is_string());
  EXPECT_EQ(j["finish_reason"], "length");
  EXPECT_TRUE(j["logprobs"].is_null());
  EXPECT_FALSE(j.contains("prompt_logits"));
  for (const char* op : {"gemm", "gdn_prefill", "gdn_decode", "causal_conv1d", "paged_attention"}) {
    EXPECT_TRUE(j["backends"].contains(op)) << op;
  }
  for (const char* key : {"prompt_tokens", "generated_tokens", "load_seconds", "first_token_seconds", "total_seconds",
                          "prefill_tokens_per_second", "decode_tokens_per_second", "peak_memory_bytes"}) {
    EXPECT_TRUE(j["stats"][key].is_number()) << key;
  }
  EXPECT_EQ(j["stats"]["generated_tokens"], 4);
}

TEST_F(RunTest, GreedyTakesTheMostLikelyTokenAndLogprobsAreNormalised) {
  const Json j = RunJson("--prompt-ids 5,6,7 --max-tokens 6 --temperature 0 --ignore-eos --logprobs 1024");
  ASSERT_EQ(j["logprobs"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const Json& l = j["logprobs"][i];
    EXPECT_EQ(l["token_id"], j["token_ids"][i]);
    EXPECT_EQ(l["top"][0][0], l["token_id"]);
    EXPECT_EQ(l["top"][0][1], l["logprob"]);
    ASSERT_EQ(l["top"].size(), 1024u) << "the whole vocabulary";
    double sum = 0;
    for (const Json& t : l["top"]) sum += std::exp(t[1].get<double>());
    EXPECT_NEAR(sum, 1, 1e-5);  // 1024 fp32 roundings of at most 2^-24 relative each, and the exp of them
  }
}

TEST_F(RunTest, PromptLogitsAreThoseOfTheFirstToken) {
  const Json j = RunJson("--prompt-ids 5,6,7 --max-tokens 1 --temperature 0 --prompt-logits");
  const std::vector<double> logits = j["prompt_logits"];
  ASSERT_EQ(logits.size(), 1024u);
  EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), j["token_ids"][0].get<int64_t>());
}

TEST_F(RunTest, StreamedTextIsTheTextOfTheJson) {
  const std::string options = " --prompt 'What is a river?' --max-tokens 40 --seed 3 --temperature 0.8 --ignore-eos";
  const Json j = RunJson(options);
  const Ran r = Run("run " + model_ + options);
  ASSERT_EQ(r.status, 0) << r.err;
  std::string text = j["text"];
  if (text.empty() || text.back() != '\n') text += '\n';
  EXPECT_EQ(r.out, text);
  EXPECT_EQ(r.err, "");
}

TEST_F(RunTest, SameSeedSameAnswer) {
  const std::string options = "--prompt-ids 5 --max-tokens 20 --temperature 1 --ignore-eos --seed ";
  const Json a = RunJson(options + "1"), b = RunJson(options + "1"), c = RunJson(options + "2");
  EXPECT_EQ(a["token_ids"], b["token_ids"]);
  EXPECT_NE(a["token_ids"], c["token_ids"]);
}

TEST_F(RunTest, StopStringsEndTheTextBeforeThem) {
  const std::string options = "--prompt-ids 5 --max-tokens 40 --temperature 0 --ignore-eos";
  const std::string whole = RunJson(options)["text"];
  ASSERT_GT(whole.size(), 8u);
  // A plain piece from the middle of the answer, so that the shell and UTF-8 need no care.
  size_t at = 4;
  while (at + 2 < whole.size() && !(std::isalpha(static_cast<unsigned char>(whole[at])) != 0 &&
                                    std::isalpha(static_cast<unsigned char>(whole[at + 1])) != 0)) {
    ++at;
  }
  ASSERT_LT(at + 2, whole.size());
  const std::string stop = whole.substr(at, 2);
  const Json j = RunJson(options + " --stop '" + stop + "'");
  EXPECT_EQ(j["text"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(j["finish_reason"], "stop");
  EXPECT_LT(j["token_ids"].size(), 40u);
  const Json two = RunJson(options + " --stop NEVER@@ --stop '" + stop + "'");
  EXPECT_EQ(two["text"], j["text"]) << "several stop strings";
}

TEST_F(RunTest, StopTokensEndToo) {
  const Json whole = RunJson("--prompt-ids 5 --max-tokens 10 --temperature 0 --ignore-eos");
  const int id = whole["token_ids"][3];
  const Json j =
      RunJson("--prompt-ids 5 --max-tokens 10 --temperature 0 --ignore-eos --stop-token-ids " + std::to_string(id));
  EXPECT_LE(j["token_ids"].size(), 4u);
  EXPECT_EQ(j["token_ids"].back(), id);
  EXPECT_EQ(j["finish_reason"], "stop");
}

TEST_F(RunTest, BackendsByName) {
  const std::string options = "--prompt-ids 5,6,7,8 --max-tokens 8 --temperature 0 --ignore-eos --dtype float32 ";
  const Json j = RunJson(options +
                         "--gdn-prefill-backend reference --gdn-decode-backend reference "
                         "--gemm-backend reference");
  EXPECT_EQ(j["backends"]["gdn_prefill"], "reference");
  EXPECT_EQ(j["backends"]["gdn_decode"], "reference");
  EXPECT_EQ(j["backends"]["gemm"], "reference");
  EXPECT_EQ(j["token_ids"], RunJson(options)["token_ids"]) << "the reference and the chosen backends agree";
}

TEST_F(RunTest, InfoLogExplainsTheChoice) {
  const Ran r = Run("run " + model_ + " --prompt-ids 5 --max-tokens 1 --log-level info");
  EXPECT_EQ(r.status, 0);
  EXPECT_NE(r.err.find("[info] gdn_prefill: "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("reference: "), std::string::npos) << r.err;
}

TEST_F(RunTest, StatisticsGoToStderr) {
  const Ran r = Run("run " + model_ + " --prompt-ids 5 --max-tokens 3 --stats");
  EXPECT_EQ(r.status, 0);
  EXPECT_NE(r.err.find("tokens/s"), std::string::npos);
  EXPECT_NE(r.err.find("gdn_decode="), std::string::npos);
  EXPECT_EQ(r.out.find("tokens/s"), std::string::npos);
}

TEST_F(RunTest, OptionsFromEnvironmentAndFile) {
  EXPECT_EQ(RunJson("--prompt-ids 5 --ignore-eos", "FLUVIAL_MAX_TOKENS=3")["token_ids"].size(), 3u);
  const std::string file = folder() / "c.toml";
  WriteText(file, "max-tokens = 5\nignore-eos = true\n[run]\nprompt-ids = \"5\"\nstop = [\"QQQ\", \"ZZZ\"]\n");
  EXPECT_EQ(RunJson("--config " + file)["token_ids"].size(), 5u);
  EXPECT_EQ(RunJson("--config " + file + " --max-tokens 2")["token_ids"].size(), 2u);
}

TEST_F(RunTest, AModelWithoutTokenizerTakesIds) {
  const std::string model = folder() / "m";
  fs::copy(model_, model);
  fs::remove(model + "/tokenizer.json");
  Ran r = Run("run " + model + " --prompt-ids 5,6 --max-tokens 3 --ignore-eos --json");
  ASSERT_EQ(r.status, 0) << r.err;
  const Json j = Json::parse(r.out);
  EXPECT_TRUE(j["text"].is_null());
  EXPECT_EQ(j["token_ids"].size(), 3u);
  r = Run("run " + model + " --prompt-ids 5,6 --max-tokens 3 --ignore-eos");
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), ','), 2) << r.out;
  ExpectError("run " + model + " --prompt hello", 3, "tokenizer.json");
  ExpectError("run " + model + " --prompt-ids 5 --stop x", 3, "tokenizer.json");
}

TEST_F(RunTest, WrongRequests) {
  const std::string run = "run " + model_ + " ";
  ExpectError("run --prompt x", 2, "model");
  ExpectError(run, 2, "there is no prompt");
  ExpectError(run + "--prompt a --prompt-ids 5", 2, "there are several prompts");
  ExpectError(run + "--prompt ''", 2, "the prompt is empty");
  ExpectError(run + "--prompt-ids 5,x", 2, "'x' is not a token id");
  ExpectError(run + "--prompt-ids 5,1024", 2, "1024");
  ExpectError(run + "--prompt-ids 1,2,3,4,5,6,7,8 --max-model-len 8", 2, "the prompt has 8 tokens");
  ExpectError(run + "--prompt-ids 5 --max-model-len 99999999", 2, "max_model_len");
  ExpectError(run + "--prompt-ids 5 --max-tokens 0", 2, "max_tokens");
  ExpectError(run + "--prompt-ids 5 --max-tokens ten", 2, "--max-tokens = ten");
  ExpectError(run + "--prompt-ids 5", 2, "--max-tokens = ten", "FLUVIAL_MAX_TOKENS=ten");
  ExpectError(run + "--prompt-ids 5 --temperature -1", 2, "temperature");
  ExpectError(run + "--prompt-ids 5 --top-p 2", 2, "top_p");
  ExpectError(run + "--prompt-ids 5 --logprobs 2", 2, "--json");
  ExpectError(run + "--prompt-ids 5 --prompt-logits", 2, "--json");
  ExpectError(run + "--prompt-ids 5 --json --logprobs 5000", 2, "logprobs");
  ExpectError(run + "--prompt-ids 5 --device tpu", 2, "unknown device 'tpu'");
  ExpectError(run + "--prompt-ids 5 --dtype int4", 2, "unknown dtype 'int4'");
  ExpectError(run + "--prompt-ids 5 --threads -2", 2, "threads");
  ExpectError(run + "--prompt-ids 5 --log-level loud", 2, "--log-level");
  ExpectError(run + "--prompt-ids 5 --gdn-prefill-backend fast", 2, "there is no backend 'fast'; backends: auto, ");
  ExpectError(run + "--prompt-ids 5 --kda-decode-backend fast", 2, "--kda-decode-backend: there is no backend 'fast'");
}

TEST_F(RunTest, ANamedBackendThatCannotRunRefuses) {
  // On the CPU device no CUDA kernel can run, whatever this machine has.
  ExpectError("run " + model_ + " --prompt-ids 5 --device cpu --gdn-prefill-backend cuda_tokens", 4,
              "gdn_prefill: backend 'cuda_tokens' cannot run this: ");
  ExpectError("run " + model_ + " --prompt-ids 5 --device cpu --gdn-decode-backend cuda_tokens", 4,
              "backends that can: cpu, reference");
}

TEST_F(RunTest, ModelsThatAreNotUsable) {
  const std::string model = folder() / "m";
  const std::string shard = model + "/model.safetensors";
  const auto fresh = [&] {
    fs::remove_all(model);
    fs::copy(model_, model);
  };
  const auto replace = [&](const std::string& file, const std::string& from, const std::string& to) {
    std::string text = ReadText(file);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    WriteText(file, text.replace(at, from.size(), to));
  };
  const std::string run = "run " + model + " --prompt-ids 5";

  ExpectError("run /nowhere --prompt-ids 5", 3, "/nowhere");
  ExpectError("run " + model_ + "/config.json --prompt-ids 5", 3, "config.json");
  fresh();
  fs::remove(shard);
  ExpectError(run, 3, "model.safetensors");
  fresh();
  fs::resize_file(shard, fs::file_size(shard) / 2);
  ExpectError(run, 3, "model.safetensors");
  fresh();
  fs::resize_file(shard, 5);
  ExpectError(run, 3, "model.safetensors");
  fresh();
  replace(shard, "\"BF16\"", "\"I16\" ");
  ExpectError(run, 3, "i16");
  fresh();
  replace(shard, "\"BF16\"", "\"Q4_0\"");
  ExpectError(run, 3, "Q4_0");
  fresh();
  replace(shard, "model.norm.weight", "model.morn.weight");
  ExpectError(run, 3, "model.norm.weight");
  fresh();
  replace(model + "/config.json", "\"hidden_size\": 128", "\"hidden_size\": 256");
  ExpectError(run, 3, "[1024,256]");
  fresh();
  replace(model + "/config.json", "Qwen3_5ForCausalLM", "MambaForCausalLM");
  ExpectError(run, 3, "MambaForCausalLM");
  fresh();
  WriteText(model + "/config.json", "[]");
  ExpectError(run, 3, "config.json");
  fresh();
  WriteText(model + "/generation_config.json", "{");
  ExpectError(run, 3, "generation_config.json");
  fresh();
  WriteText(model + "/tokenizer.json", "{}");
  ExpectError(run, 3, "tokenizer.json");
}

TEST_F(RunTest, AReaderThatLeavesEndsTheRun) {
  const std::string err = folder() / "e";
  const int raw = std::system(
      (FLUVIAL_PROGRAM " run " + model_ + " --prompt-ids 5 --ignore-eos --max-tokens 8000 >/dev/full 2>" + err)
          .c_str());
  EXPECT_EQ(WEXITSTATUS(raw), 1);
  EXPECT_NE(ReadText(err).find("writing to the standard output failed"), std::string::npos);
}

TEST_F(RunTest, CtrlCEndsCleanly) {
  const std::string out = folder() / "out";
  const std::vector<std::string> arguments = {FLUVIAL_PROGRAM, "run",          model_, "--prompt-ids", "5",
                                              "--ignore-eos",  "--max-tokens", "8000", "--json"};
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  ASSERT_EQ(posix_spawn(&pid, FLUVIAL_PROGRAM, &files, &attributes, argv.data(), environ), 0);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(pid, SIGINT);
  int raw = 0;
  ASSERT_EQ(waitpid(pid, &raw, 0), pid);
  ASSERT_TRUE(WIFEXITED(raw)) << "ended by signal " << WTERMSIG(raw);
  EXPECT_EQ(WEXITSTATUS(raw), 130);
  const Json j = Json::parse(ReadText(out), nullptr, false);
  ASSERT_TRUE(j.is_object()) << "what was generated is still reported";
  EXPECT_EQ(j["finish_reason"], "cancelled");
  EXPECT_GT(j["token_ids"].size(), 0u);
  EXPECT_LT(j["token_ids"].size(), 8000u);
}

}  // namespace
}  // namespace fluvial::tools
