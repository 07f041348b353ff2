// SPDX-License-Identifier: Apache-2.0
// fluvial inspect, and what every command says about a model that is not usable.
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "cli_testkit.h"

namespace fluvial::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class InspectTest : public CliTest {
 protected:
  /// A copy of the bundled model that a test may damage.
  std::string CopyOfDemo() {
    const fs::path to = folder() / "model";
    fs::remove_all(to);
    fs::copy(Source("models/demo-random-gdn"), to, fs::copy_options::recursive);
    return to;
  }
  static void Replace(const fs::path& file, const std::string& from, const std::string& to) {
    std::string text = ReadText(file);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    WriteText(file, text.replace(at, from.size(), to));
  }
};

TEST_F(InspectTest, Json) {
  const Ran r = Run("inspect --json " + Source("models/demo-random-gdn").string());
  ASSERT_EQ(r.status, 0) << r.err;
  const Json root = Json::parse(r.out);
  EXPECT_EQ(root["config"]["architecture"], "Qwen3_5ForCausalLM");
  EXPECT_EQ(root["config"]["linear_attention_layers"].get<int>() + root["config"]["full_attention_layers"].get<int>(),
            root["config"]["layers"].get<int>());
  int64_t parameters = 0, bytes = 0;
  for (const Json& t : root["tensors"]) {
    int64_t n = 1;
    for (int64_t d : t["shape"]) n *= d;
    parameters += n;
    bytes += t["bytes"].get<int64_t>();
  }
  EXPECT_EQ(root["parameters"], parameters);
  EXPECT_LE(bytes, root["memory"]["weight_bytes"].get<int64_t>());
  // 3 linear layers of 2 heads of 128 x 128 fp32, and 3 columns of 512 bf16 channels each; 1 attention layer.
  EXPECT_EQ(root["memory"]["state_bytes_per_sequence"], 3 * (2 * 128 * 128 * 4 + 3 * 512 * 2));
  EXPECT_EQ(root["memory"]["kv_bytes_per_token"], 2 * 64 * 2);
}

TEST_F(InspectTest, TextGroupsLayersUnlessAsked) {
  const std::string model = Source("models/demo-random-gdn");
  Ran r = Run("inspect " + model);
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("model.layers.*.mlp.up_proj.weight"), std::string::npos);
  EXPECT_EQ(r.out.find("model.layers.1.mlp.up_proj.weight"), std::string::npos);
  r = Run("inspect --tensors --model " + model);
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("model.layers.1.mlp.up_proj.weight"), std::string::npos);
}

TEST_F(InspectTest, ConfigAlone) {
  const std::string model = CopyOfDemo();
  const Json whole = Json::parse(Run("inspect --json " + model).out);
  fs::remove(model + "/model.safetensors");
  const Ran r = Run("inspect --json " + model);
  ASSERT_EQ(r.status, 0) << r.err;
  const Json alone = Json::parse(r.out);
  EXPECT_EQ(alone["parameters"], whole["parameters"]);
  EXPECT_EQ(alone["expected_parameters"], whole["expected_parameters"]);
  EXPECT_EQ(alone["memory"]["state_bytes_per_sequence"], whole["memory"]["state_bytes_per_sequence"]);
  EXPECT_EQ(alone["memory"]["kv_bytes_per_token"], whole["memory"]["kv_bytes_per_token"]);
  EXPECT_TRUE(alone["tensors"].empty());
  const Ran text = Run("inspect " + model);
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("none here"), std::string::npos) << text.out;
  const Ran explain = Run("explain --json " + model);
  ASSERT_EQ(explain.status, 0) << explain.err;
  EXPECT_EQ(Json::parse(explain.out)["parameters"], whole["expected_parameters"]);
}

TEST_F(InspectTest, SparseLatentAttentionAndResidualStreams) {
  const std::string model = Source("tests/golden/glm5_next/published");
  const Json root = Json::parse(Run("inspect --json " + model).out);
  EXPECT_EQ(root["config"]["latent_attention"]["rank"], 32);
  EXPECT_EQ(root["config"]["indexer"]["topk"], 2048);
  // 2 KDA layers of 2 heads of 32 x 32 fp32 and 3 columns of 192 bf16 channels; of 3 layers with latents of 32 all but
  // the sharing one keep an indexer's key and gate of 16.
  EXPECT_EQ(root["memory"]["state_bytes_per_sequence"], 2 * (2 * 32 * 32 * 4 + 3 * 192 * 2));
  EXPECT_EQ(root["memory"]["kv_bytes_per_token"], (3 * 32 + 2 * 2 * 16) * 2);
  const Ran text = Run("inspect " + model);
  EXPECT_NE(text.out.find("no position encoding"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("streams       4"), std::string::npos) << text.out;

  const Ran explain = Run("explain --json " + model);
  ASSERT_EQ(explain.status, 0) << explain.err;
  const Json answers = Json::parse(explain.out);
  std::map<std::string, int> asked;
  for (const Json& op : answers["operators"]) {
    ++asked[op["op"]];
    EXPECT_FALSE(op["chosen"].is_null()) << op["problem"];
  }
  for (const char* op : {"kda_prefill", "kda_decode", "mla_attention", "pool_index", "moe", "gemm", "causal_conv1d"}) {
    EXPECT_GT(asked[op], 0) << op;
  }
  EXPECT_EQ(asked["gdn_prefill"] + asked["paged_attention"], 0);
}

TEST_F(InspectTest, ModelsThatAreNotUsable) {
  ExpectError("inspect", 2, "model");
  ExpectError("inspect /nowhere", 3, "/nowhere/config.json");
  ExpectError("inspect " + folder().string(), 3, "config.json");

  std::string model = CopyOfDemo();
  fs::remove(model + "/model.safetensors");
  WriteText(model + "/model.safetensors.index.json", R"({"weight_map":{"a":"absent.safetensors"}})");
  ExpectError("inspect " + model, 3, "absent.safetensors");

  model = CopyOfDemo();
  fs::resize_file(model + "/model.safetensors", fs::file_size(model + "/model.safetensors") - 100);
  ExpectError("inspect " + model, 3, "model.safetensors");

  model = CopyOfDemo();
  WriteText(model + "/model.safetensors", "short");
  ExpectError("inspect " + model, 3, "model.safetensors");

  model = CopyOfDemo();
  WriteText(model + "/config.json", "{ not json");
  ExpectError("inspect " + model, 3, "config.json");

  model = CopyOfDemo();
  Replace(model + "/config.json", "Qwen3_5ForCausalLM", "GPT9ForCausalLM");
  ExpectError("inspect " + model, 3, "GPT9ForCausalLM");

  model = CopyOfDemo();
  Replace(model + "/config.json", "\"hidden_size\": 128", "\"hidden_size\": \"wide\"");
  ExpectError("inspect " + model, 3, "hidden_size");
}

}  // namespace
}  // namespace fluvial::tools
