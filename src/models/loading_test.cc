// SPDX-License-Identifier: Apache-2.0
// Checkpoints that do not fit their config.json, and forms of the same weights that must load.
#include <gtest/gtest.h>

#include "models/model_testkit.h"

namespace fluvial::models {
namespace {

using testing::AlteredCheckpoint;
using testing::Bench;
using testing::Golden;
using testing::GoldenDirectory;
using testing::RawTensor;

Status LoadStatus(const std::string& directory) {
  const auto stream = MakeCpuStream(1);
  const auto model = LoadModel(directory, {}, *stream);
  return model.ok() ? Status::Ok() : model.status();
}

void Keep(std::vector<RawTensor>&) {}

void ExpectSays(const Status& status, std::initializer_list<const char*> parts) {
  EXPECT_EQ(status.code(), Code::kUnusableModel);
  for (const char* part : parts)
    EXPECT_NE(status.message().find(part), std::string::npos) << part << "\n" << status.message();
}

TEST(Loading, WeightsThatDoNotFit) {
  const std::string text = GoldenDirectory("qwen3_5/text");
  {
    AlteredCheckpoint c(text, Keep);
    c.Configure("\"intermediate_size\": 96", "\"intermediate_size\": 97");
    ExpectSays(LoadStatus(c.path()), {"12 of another shape"});
  }
  {
    AlteredCheckpoint c(text, Keep);
    c.Configure("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    const Status tied = LoadStatus(c.path());
    EXPECT_TRUE(tied.ok()) << "lm_head of a tied model is ignored: " << tied.message();
  }
  {
    AlteredCheckpoint c(text, Keep);
    c.Configure("\"full_attention\"", "\"linear_attention\"");
    ExpectSays(LoadStatus(c.path()), {"missing", "not known to this architecture"});
  }
  {
    AlteredCheckpoint c(text, Keep);
    c.Configure("Qwen3_5ForCausalLM", "Qwen3NextForCausalLM");
    ExpectSays(LoadStatus(c.path()), {"missing"});
  }
}

TEST(Loading, OneErrorListsEverythingThatIsWrong) {
  AlteredCheckpoint c(GoldenDirectory("qwen_moe/next"), [](std::vector<RawTensor>& tensors) {
    std::vector<RawTensor> kept;
    for (RawTensor& t : tensors) {
      if (t.name.find("layers.2.mlp.experts.") != std::string::npos && t.name.find("up_proj") != std::string::npos)
        continue;
      if (t.name == "model.norm.weight") continue;
      if (t.name == "model.layers.3.self_attn.q_norm.weight") t.shape = {t.shape[0] / 2, 2};
      if (t.name == "model.layers.0.mlp.shared_expert_gate.weight") t.name = "model.layers.0.mlp.shared_gate.weight";
      kept.push_back(t);
    }
    tensors = kept;
  });
  const Status status = LoadStatus(c.path());
  ExpectSays(status,
             {"10 missing", "model.norm.weight [64]", "model.layers.2.mlp.experts.{0-7}.up_proj.weight [16,64] (8)",
              "model.layers.0.mlp.shared_expert_gate.weight [1,64]", "1 of another shape",
              "model.layers.3.self_attn.q_norm.weight is fp32[16,2] instead of floating [32]",
              "1 not known to this architecture: model.layers.0.mlp.shared_gate.weight"});
}

TEST(Loading, RoutersThatCannotRun) {
  AlteredCheckpoint c(GoldenDirectory("qwen_moe/next"), Keep);
  c.Configure("\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 9");
  ExpectSays(LoadStatus(c.path()), {"num_experts_per_tok 9 is more than the 8"});
  AlteredCheckpoint many(GoldenDirectory("qwen_moe/next"), Keep);
  many.Configure("\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 65");
  many.Configure("\"num_experts\": 8", "\"num_experts\": 4096");
  ExpectSays(LoadStatus(many.path()), {"per_token=65"});
}

TEST(Loading, AbsentExpertsAreNamedAsStacks) {
  AlteredCheckpoint c(GoldenDirectory("qwen_moe/next"), [](std::vector<RawTensor>& tensors) {
    std::erase_if(tensors, [](const RawTensor& t) { return t.name.find(".mlp.experts.") != std::string::npos; });
  });
  ExpectSays(LoadStatus(c.path()), {"model.layers.{0,2-3}.mlp.experts.gate_up_proj [8,32,64] (3)",
                                    "model.layers.{0,2-3}.mlp.experts.down_proj [8,64,16] (3)"});
}

TEST(Loading, ExpertsOfOneLayerHaveOneType) {
  AlteredCheckpoint c(GoldenDirectory("qwen_moe/next"), [](std::vector<RawTensor>& tensors) {
    for (RawTensor& t : tensors) {
      if (t.name != "model.layers.2.mlp.experts.3.down_proj.weight") continue;
      t.dtype = DType::kBF16;
      t.bytes.resize(t.bytes.size() / 2);
    }
  });
  ExpectSays(LoadStatus(c.path()), {"layers.2.mlp.experts.", "fp32 and bf16"});
}

/// Logits of the 65-token prompt of `golden`.
std::vector<float> Logits(const std::string& directory, const Golden& golden) {
  Bench bench(directory);
  return bench.ok() ? bench.Prompt(0, golden.Ints("p65.ids")) : std::vector<float>();
}

RawTensor Transposed(RawTensor t) {
  const int64_t e = t.shape[0], rows = t.shape[1], columns = t.shape[2];
  std::vector<float> in(t.bytes.size() / sizeof(float)), out(in.size());
  std::memcpy(in.data(), t.bytes.data(), t.bytes.size());
  for (int64_t x = 0; x < e; ++x) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        out[static_cast<size_t>((x * columns + c) * rows + r)] = in[static_cast<size_t>((x * rows + r) * columns + c)];
      }
    }
  }
  std::memcpy(t.bytes.data(), out.data(), t.bytes.size());
  t.shape = {e, columns, rows};
  return t;
}

TEST(Loading, ExpertsInEitherOrientation) {
  const Golden golden(GoldenDirectory("qwen_moe/moe") + "/golden.safetensors");
  const std::string released = GoldenDirectory("qwen_moe/moe_released");
  const auto want = Logits(released, golden);
  for (const auto& turned : std::vector<std::vector<const char*>>{
           {"experts.gate_up_proj"}, {"experts.down_proj"}, {"experts.gate_up_proj", "experts.down_proj"}}) {
    const AlteredCheckpoint c(released, [&](std::vector<RawTensor>& tensors) {
      for (RawTensor& t : tensors) {
        for (const char* part : turned) {
          if (t.name.find(part) != std::string::npos && t.shape.size() == 3) t = Transposed(t);
        }
      }
    });
    EXPECT_EQ(Logits(c.path(), golden), want) << turned[0];
  }
}

TEST(Loading, TextOnlyNamesOfAMultimodalModel) {
  const Golden golden(GoldenDirectory("qwen_moe/moe") + "/golden.safetensors");
  const std::string released = GoldenDirectory("qwen_moe/moe_released");
  const AlteredCheckpoint c(released, [&](std::vector<RawTensor>& tensors) {
    std::vector<RawTensor> kept;
    for (RawTensor& t : tensors) {
      if (t.name.starts_with("mtp.") || t.name.starts_with("model.visual.")) continue;
      const std::string nested = "model.language_model.";
      if (t.name.starts_with(nested)) t.name = "model." + t.name.substr(nested.size());
      kept.push_back(t);
    }
    tensors = kept;
  });
  EXPECT_EQ(Logits(c.path(), golden), Logits(released, golden));
}

TEST(Loading, TiedHead) {
  // With lm_head equal to the embedding, tied and untied are the same model.
  const std::string directory = GoldenDirectory("qwen_moe/next");
  const Golden golden(directory + "/golden.safetensors");
  const auto copy_embedding = [](std::vector<RawTensor>& tensors) {
    const auto find = [&](const char* name) {
      return std::find_if(tensors.begin(), tensors.end(), [&](const RawTensor& t) { return t.name == name; });
    };
    find("lm_head.weight")->bytes = find("model.embed_tokens.weight")->bytes;
  };
  const AlteredCheckpoint untied(directory, copy_embedding);
  AlteredCheckpoint tied(directory, [](std::vector<RawTensor>& tensors) {
    std::erase_if(tensors, [](const RawTensor& t) { return t.name == "lm_head.weight"; });
  });
  ExpectSays(LoadStatus(tied.path()), {"lm_head.weight"});
  tied.Configure("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  EXPECT_EQ(Logits(tied.path(), golden), Logits(untied.path(), golden));
}

}  // namespace
}  // namespace fluvial::models
