// SPDX-License-Identifier: Apache-2.0
#include "fluvial/engine.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "engine/engine_testkit.h"
#include "engine/free_list.h"

namespace fluvial {
namespace {

using engine::testing::Greedy;
using engine::testing::Ids;
using engine::testing::Loaded;
using engine::testing::Options;
using models::testing::Golden;
using models::testing::GoldenDirectory;

constexpr int kPrompts[] = {1, 2, 63, 64, 65, 300};

std::string Text() { return GoldenDirectory("qwen3_5/text"); }

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() : golden_(Text() + "/golden.safetensors") {}
  std::vector<int32_t> Prompt(int n) const { return golden_.Ints("p" + std::to_string(n) + ".ids"); }
  std::vector<int32_t> Want(int n) const { return golden_.Ints("p" + std::to_string(n) + ".greedy"); }
  Golden golden_;
};

TEST_F(EngineTest, GreedyAnswersEqualTransformersWhateverTheSchedule) {
  struct Case {
    int32_t sequences;
    int64_t batched;
    int32_t page;
  };
  for (const Case c : {Case{8, 512, 16}, Case{1, 512, 16}, Case{3, 64, 1}, Case{6, 7, 5}, Case{2, 100, 64}}) {
    SCOPED_TRACE(c.batched);
    EngineOptions o = Options();
    o.max_num_seqs = c.sequences;
    o.max_num_batched_tokens = c.batched;
    o.block_size = c.page;
    const auto engine = Loaded(o);
    ASSERT_NE(engine, nullptr);
    std::vector<Request> requests;
    for (const int n : kPrompts) requests.push_back(Greedy(Prompt(n)));
    for (int round = 0; round < 2; ++round) {  // the second round reuses slots and pages
      const auto answers = engine->Generate(requests);
      ASSERT_TRUE(answers.ok()) << answers.status().message();
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(Ids((*answers)[i]), Want(kPrompts[i])) << "prompt " << kPrompts[i];
        EXPECT_EQ((*answers)[i].finish_reason, FinishReason::kLength);
        EXPECT_TRUE((*answers)[i].status.ok());
      }
    }
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.prompt_tokens, 2 * (1 + 2 + 63 + 64 + 65 + 300));
    EXPECT_EQ(stats.generated_tokens, 2 * 6 * 64);
    EXPECT_EQ(stats.nan_aborts, 0);
    EXPECT_GT(stats.DecodeTokensPerSecond(), 0);
    EXPECT_GT(stats.peak_memory_bytes, stats.weight_bytes);
  }
}

TEST_F(EngineTest, BackendsAreNamedAndExplained) {
  const auto engine = Loaded();
  ASSERT_NE(engine, nullptr);
  std::map<std::string, BackendUse> uses;
  for (const BackendUse& u : engine->backends()) uses[u.op] = u;
  for (const char* op : {"gemm", "gdn_prefill", "gdn_decode", "causal_conv1d", "paged_attention"}) {
    ASSERT_TRUE(uses.contains(op)) << op;
    EXPECT_FALSE(uses[op].name.empty()) << op;
    EXPECT_TRUE(uses[op].explanation.starts_with(op)) << uses[op].explanation;
    EXPECT_NE(uses[op].name, "reference") << "auto must not end on the reference: " << uses[op].explanation;
  }
}

TEST_F(EngineTest, NamedBackendsRunOrAreRefused) {
  EngineOptions o = Options();
  for (const char* op : {"gemm", "gdn_prefill", "gdn_decode", "causal_conv1d", "paged_attention"}) {
    o.backends[op] = "reference";
  }
  const auto engine = Loaded(o);
  ASSERT_NE(engine, nullptr);
  for (const BackendUse& u : engine->backends()) EXPECT_EQ(u.name, "reference") << u.op;
  const auto answer = engine->Generate({Greedy(Prompt(65), 8)});
  ASSERT_TRUE(answer.ok());
  const auto want = Want(65);
  EXPECT_EQ(Ids((*answer)[0]), std::vector<int32_t>(want.begin(), want.begin() + 8));

  o.backends["gdn_prefill"] = "cuda_tokens";
  const auto refused = Engine::Load(o);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kRefused) << refused.status().message();
  EXPECT_NE(refused.status().message().find("backends that can"), std::string::npos) << refused.status().message();
  o.backends["gdn_prefill"] = "nonsense";
  EXPECT_EQ(Engine::Load(o).status().code(), Code::kInvalidArgument);
  o.backends.erase("gdn_prefill");
  o.backends["no_such_operator"] = "cpu";
  EXPECT_EQ(Engine::Load(o).status().code(), Code::kInvalidArgument);
}

TEST_F(EngineTest, StateTypesAreChosenOrRefused) {
  EngineOptions o = Options();
  o.model = GoldenDirectory("qwen3_5/text_bf16");
  const auto plain = Loaded(o);
  o.mamba_ssm_cache_dtype = "bfloat16";
  const auto small = Loaded(o);
  o.mamba_ssm_cache_dtype = "auto";
  o.mamba_cache_dtype = "float32";
  const auto wide = Loaded(o);
  ASSERT_TRUE(plain && small && wide);
  // 3 linear layers, 9 slots: recurrent [4, 16, 32], conv [3, 192].
  const uint64_t recurrent = 3 * 9 * 4 * 16 * 32, conv = 3 * 9 * 3 * 192;
  EXPECT_EQ(plain->stats().state_bytes, recurrent * 4 + conv * 2);
  EXPECT_EQ(small->stats().state_bytes, recurrent * 2 + conv * 2);
  EXPECT_EQ(wide->stats().state_bytes, recurrent * 4 + conv * 4);
  // The convolution's inputs are bf16 values whatever holds them, so the answer is the same bit for bit.
  const Request r = Greedy(Prompt(65), 16);
  EXPECT_EQ(Ids((*wide->Generate({r}))[0]), Ids((*plain->Generate({r}))[0]));
  EXPECT_EQ((*small->Generate({r}))[0].finish_reason, FinishReason::kLength);
  o.mamba_cache_dtype = "float16";  // neither fp32 nor the model's type
  EXPECT_EQ(Engine::Load(o).status().code(), Code::kInvalidArgument);
}

TEST_F(EngineTest, NotFiniteEndsOneRequestAndNobodyElses) {
  // A NaN row of the embedding: a prompt that holds its id poisons its own caches and nothing more.
  std::set<int32_t> used;
  for (const int n : {64, 65, 300}) {
    for (const auto& ids : {Prompt(n), Want(n)}) used.insert(ids.begin(), ids.end());
  }
  int32_t bad = 0;
  while (used.contains(bad)) ++bad;
  ASSERT_LT(bad, 512);
  const models::testing::AlteredCheckpoint copy(Text(), engine::testing::NotANumber(bad));
  EngineOptions o = Options();
  o.model = copy.path();
  o.max_num_seqs = 2;  // slots and pages of the poisoned request are used again
  const auto engine = Loaded(o);
  ASSERT_NE(engine, nullptr);
  Request poisoned = Greedy(Prompt(64));
  poisoned.prompt[10] = bad;
  const auto answers =
      engine->Generate({Greedy(Prompt(65)), poisoned, Greedy(Prompt(300)), poisoned, Greedy(Prompt(64))});
  ASSERT_TRUE(answers.ok());
  for (const size_t i : {1, 3}) {
    EXPECT_EQ((*answers)[i].finish_reason, FinishReason::kError);
    EXPECT_EQ((*answers)[i].status.code(), Code::kFailed);
    EXPECT_TRUE((*answers)[i].tokens.empty());
  }
  EXPECT_EQ(Ids((*answers)[0]), Want(65));
  EXPECT_EQ(Ids((*answers)[2]), Want(300));
  EXPECT_EQ(Ids((*answers)[4]), Want(64));
  EXPECT_EQ(engine->stats().nan_aborts, 2);
}

TEST_F(EngineTest, StreamsInOrderAndStops) {
  const auto engine = Loaded();
  ASSERT_NE(engine, nullptr);
  const auto want = Want(64);
  std::map<uint64_t, std::vector<int32_t>> streamed;
  // Request 1 is stopped by the callback after 5 tokens, request 2 by a stop id, request 3 by max_tokens.
  std::vector<Request> requests(4, Greedy(Prompt(64)));
  requests[2].stop_ids = {want[9]};
  requests[3].max_tokens = 3;
  const auto answers = engine->Generate(requests, [&](uint64_t i, const Token& t) {
    streamed[i].push_back(t.id);
    return i == 1 && streamed[i].size() == 5 ? Next::kStop : Next::kContinue;
  });
  ASSERT_TRUE(answers.ok()) << answers.status().message();
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(streamed[i], Ids((*answers)[i]));
  EXPECT_EQ(Ids((*answers)[0]), want);
  EXPECT_EQ(Ids((*answers)[1]), std::vector<int32_t>(want.begin(), want.begin() + 5));
  EXPECT_EQ((*answers)[1].finish_reason, FinishReason::kStop);
  EXPECT_EQ((*answers)[1].stop_id, -1);
  const auto first = std::find(want.begin(), want.end(), want[9]);
  EXPECT_EQ(Ids((*answers)[2]), std::vector<int32_t>(want.begin(), first + 1));
  EXPECT_EQ((*answers)[2].stop_id, want[9]);
  EXPECT_EQ((*answers)[2].finish_reason, FinishReason::kStop);
  EXPECT_EQ((*answers)[3].tokens.size(), 3u);
  EXPECT_EQ((*answers)[3].finish_reason, FinishReason::kLength);

  // min_tokens keeps the stop id from being drawn at all.
  Request late = requests[2];
  late.min_tokens = late.max_tokens = 20;
  const auto ids = Ids((*engine->Generate({late}))[0]);
  EXPECT_EQ(ids.size(), 20u);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), want[9]), 0);
}

TEST_F(EngineTest, PromptLogitsAndLogprobs) {
  const auto engine = Loaded();
  ASSERT_NE(engine, nullptr);
  Request r = Greedy(Prompt(65), 4);
  r.prompt_logits = true;
  r.logprobs = 5;
  const auto answers = engine->Generate({r});
  ASSERT_TRUE(answers.ok());
  const Completion& c = (*answers)[0];
  const auto positions = golden_.Ints("p65.positions");
  const auto logits = golden_.Floats("p65.logits");
  const auto want = models::testing::Row(logits, static_cast<int64_t>(positions.size()) - 1, engine->info().vocab_size);
  EXPECT_LE(models::testing::MaxDifference(c.prompt_logits, want), 2e-4);
  double sum = 0;
  for (const float x : want) sum += std::exp(static_cast<double>(x));
  ASSERT_EQ(c.tokens[0].top.size(), 5u);
  EXPECT_EQ(c.tokens[0].top[0].first, c.tokens[0].id);
  EXPECT_NEAR(c.tokens[0].logprob, want[static_cast<size_t>(c.tokens[0].id)] - std::log(sum), 4e-4);
  for (size_t i = 1; i < 5; ++i) EXPECT_GE(c.tokens[0].top[i - 1].second, c.tokens[0].top[i].second);
}

TEST_F(EngineTest, DrawsDependOnSeedAndNotOnCompany) {
  const auto engine = Loaded();
  ASSERT_NE(engine, nullptr);
  Request r = Greedy(Prompt(63), 32);
  r.sampling.temperature = 1.0f;
  r.sampling.seed = 42;
  r.sampling.repetition_penalty = 1.1f;
  const auto alone = Ids((*engine->Generate({r}))[0]);
  Request other = r;
  other.sampling.seed = 43;
  const auto together = *engine->Generate({other, r, Greedy(Prompt(300))});
  EXPECT_EQ(Ids(together[1]), alone);
  EXPECT_NE(Ids(together[0]), alone);
}

TEST_F(EngineTest, ConstraintsAllowAndFail) {
  /// Token i of the answer must be allowed[i]; nothing is allowed after the last.
  struct Script : TokenConstraint {
    explicit Script(std::vector<int32_t> ids) : allowed(std::move(ids)) {}
    Status Allowed(std::span<uint32_t> mask) override {
      if (at == allowed.size()) return Status::Failed("the script is at its end");
      const auto id = static_cast<size_t>(allowed[at]);
      mask[id / 32] |= 1u << (id % 32);
      return Status::Ok();
    }
    Status Accept(int32_t id) override {
      return id == allowed[at++] ? Status::Ok() : Status::Failed("the mask was not obeyed");
    }
    std::vector<int32_t> allowed;
    size_t at = 0;
  };
  const auto engine = Loaded();
  ASSERT_NE(engine, nullptr);
  const std::vector<int32_t> script = {511, 0, 31, 32, 77, 3};
  Request r = Greedy(Prompt(64), 6);
  r.constraint = std::make_shared<Script>(script);
  Request longer = Greedy(Prompt(64), 7);
  longer.constraint = std::make_shared<Script>(script);
  const auto answers = engine->Generate({r, Greedy(Prompt(65)), longer});
  ASSERT_TRUE(answers.ok());
  EXPECT_EQ(Ids((*answers)[0]), script);
  EXPECT_EQ((*answers)[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(Ids((*answers)[1]), Want(65));
  EXPECT_EQ(Ids((*answers)[2]), script);
  EXPECT_EQ((*answers)[2].finish_reason, FinishReason::kError);
  EXPECT_NE((*answers)[2].status.message().find("at its end"), std::string::npos);
}

TEST_F(EngineTest, CancelsFromTheFlagAndById) {
  const auto engine = Loaded();
  ASSERT_NE(engine, nullptr);
  std::atomic<bool> cancel{false};
  int seen = 0;
  const auto answers = engine->Generate(
      {Greedy(Prompt(64)), Greedy(Prompt(65))},
      [&](uint64_t, const Token&) {
        if (++seen == 6) cancel = true;
        return Next::kContinue;
      },
      &cancel);
  ASSERT_TRUE(answers.ok());
  for (const Completion& c : *answers) {
    EXPECT_EQ(c.finish_reason, FinishReason::kCancelled);
    EXPECT_LT(c.tokens.size(), 10u);
  }
  // Everything was given back: the same engine still answers.
  EXPECT_EQ(Ids((*engine->Generate({Greedy(Prompt(64))}))[0]), Want(64));

  Completion done;
  const auto id = engine->Submit(Greedy(Prompt(300)), {}, [&](uint64_t, Completion c) { done = std::move(c); });
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(*engine->Step());
  engine->Cancel(*id);
  engine->Cancel(987654);  // unknown: ignored
  EXPECT_FALSE(*engine->Step());
  EXPECT_EQ(done.finish_reason, FinishReason::kCancelled);
}

TEST_F(EngineTest, SubmitsFromOtherThreads) {
  EngineOptions o = Options();
  o.max_num_seqs = 3;
  const auto engine = Loaded(o);
  ASSERT_NE(engine, nullptr);
  std::atomic<int> left{12};
  std::vector<std::vector<int32_t>> got(12);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 4; ++i) {
        const int n = t * 4 + i;
        EXPECT_TRUE(engine
                        ->Submit(Greedy(Prompt(kPrompts[n % 6]), 16), {},
                                 [&, n](uint64_t, Completion c) {
                                   got[static_cast<size_t>(n)] = Ids(c);
                                   --left;
                                 })
                        .ok());
      }
    });
  }
  while (left > 0) ASSERT_TRUE(engine->Step().ok());
  for (std::thread& t : threads) t.join();
  for (int n = 0; n < 12; ++n) {
    const auto want = Want(kPrompts[n % 6]);
    EXPECT_EQ(got[static_cast<size_t>(n)], std::vector<int32_t>(want.begin(), want.begin() + 16)) << n;
  }
}

TEST_F(EngineTest, RefusesBadRequests) {
  EngineOptions o = Options();
  o.max_model_len = 100;
  o.kv_cache_tokens = 64;
  const auto engine = Loaded(o);
  ASSERT_NE(engine, nullptr);
  const auto refused = [&](const Request& r, const char* part) {
    const Status s = engine->Check(r);
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << part;
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
    EXPECT_FALSE(engine->Generate({Greedy({1}, 1), r}).ok());
  };
  refused(Greedy({}), "empty");
  refused(Greedy({512}), "0 to 511");
  refused(Greedy({-1}), "-1");
  refused(Greedy(std::vector<int32_t>(100, 1)), "max_model_len");
  refused(Greedy({1}, 0), "max_tokens");
  refused(Greedy({1, 2}, 90), "KV cache");
  Request r = Greedy({1});
  r.min_tokens = 65;
  refused(r, "min_tokens");
  r = Greedy({1}, 4);
  r.sampling.top_p = 2;
  refused(r, "top_p");
  // max_tokens beyond the model's length is cut, not refused.
  EngineOptions roomy = Options();
  roomy.max_model_len = 70;
  const auto answers = Loaded(roomy)->Generate({Greedy(Prompt(65), 1000)});
  ASSERT_TRUE(answers.ok());
  EXPECT_EQ((*answers)[0].tokens.size(), 5u);
  EXPECT_EQ((*answers)[0].finish_reason, FinishReason::kLength);
}

TEST_F(EngineTest, RefusesBadOptions) {
  const auto error = [](auto change) {
    EngineOptions o = Options();
    change(o);
    const auto engine = Engine::Load(o);
    return engine.ok() ? Code::kOk : engine.status().code();
  };
  EXPECT_EQ(error([](EngineOptions& o) { o.model = ""; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.model = "/nonexistent"; }), Code::kUnusableModel);
  EXPECT_EQ(error([](EngineOptions& o) { o.device = "tpu"; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.device = "cuda:x"; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.dtype = "int3"; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.dtype = "float64"; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.mamba_ssm_cache_dtype = "x"; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.max_num_seqs = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.max_num_batched_tokens = 7; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.max_model_len = 5000; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.max_model_len = -1; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.block_size = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(error([](EngineOptions& o) { o.threads = -2; }), Code::kInvalidArgument);
}

TEST(FreeList, LowestFirst) {
  engine::FreeList list(1, 3);
  EXPECT_EQ(list.Take(), 1);
  EXPECT_EQ(list.Take(), 2);
  list.Give(1);
  EXPECT_EQ(list.Take(), 1);
  EXPECT_EQ(list.Take(), 3);
  EXPECT_EQ(list.Take(), -1);
}

}  // namespace
}  // namespace fluvial
