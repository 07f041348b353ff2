// SPDX-License-Identifier: Apache-2.0
// Requests with pictures through the engine: whatever the chunks, the neighbours and the caches, the answer of the
// golden files (tools/golden/make_vision.py) and of the request alone.
#include <gtest/gtest.h>

#include "engine/engine_testkit.h"
#include "vision/processor.h"
#include "vision/testkit.h"

namespace fluvial {
namespace {

using engine::testing::Greedy;
using engine::testing::Ids;
using engine::testing::Loaded;
using engine::testing::Options;
using models::testing::Golden;
using models::testing::GoldenDirectory;
using models::testing::MaxDifference;

constexpr double kLogitGate = 3e-4;
constexpr double kSame = 1e-6;  // snapshots on the grid of chunks are exact; one changed pixel moves logits by more
constexpr const char* kFamilies[] = {"qwen3_5", "qwen3_vl", "qwen2_5_vl", "qwen3_vl_moe", "qwen3_5_moe"};

vision::Processor ProcessorOf(const std::string& checkpoint) {
  auto processor = vision::Processor::Load(GoldenDirectory(checkpoint));
  EXPECT_TRUE(processor.ok()) << processor.status().message();
  return processor.ok() ? *processor : vision::Processor({});
}

/// A case of images of a golden file.
Request Case(const std::string& checkpoint, const Golden& golden, const std::string& name) {
  const vision::Processor processor = ProcessorOf(checkpoint);
  Request r = Greedy(golden.Ints(name + ".ids"), 8);
  const auto numbers = golden.Ints(name + ".items");
  for (size_t i = 0; i + 6 <= numbers.size(); i += 6) {
    auto media = processor.Process(vision::testing::Picture(numbers[i + 1], numbers[i + 2], numbers[i + 3]));
    EXPECT_TRUE(media.ok());
    r.vision.push_back(media->input);
  }
  return r;
}

std::vector<Completion> Answers(Engine& engine, const std::vector<Request>& requests) {
  auto answers = engine.Generate(requests);
  EXPECT_TRUE(answers.ok()) << answers.status().message();
  return answers.ok() ? std::move(answers).value() : std::vector<Completion>(requests.size());
}

/// The last stored row is that of the prompt's last token.
std::vector<float> LastLogits(const Golden& golden, const std::string& name, int64_t vocab) {
  const auto logits = golden.Floats(name + ".logits");
  return {logits.end() - vocab, logits.end()};
}

TEST(EngineVision, PromptLogitsWhateverTheChunks) {
  for (const std::string family : kFamilies) {
    const std::string checkpoint = "vision/" + family;
    const Golden golden(GoldenDirectory(checkpoint) + "/golden.safetensors");
    std::vector<std::vector<int32_t>> first;
    for (const int64_t chunk : {512, 64, 9}) {
      EngineOptions options = Options(checkpoint);
      options.max_num_batched_tokens = chunk;
      const auto engine = Loaded(options);
      ASSERT_NE(engine, nullptr);
      EXPECT_TRUE(engine->info().has_vision);
      size_t index = 0;
      for (const std::string name : {"one", "three", "sizes", "grid"}) {
        SCOPED_TRACE(family + " " + name + " " + std::to_string(chunk));
        Request r = Case(checkpoint, golden, name);
        r.prompt_logits = true;
        const Completion c = Answers(*engine, {r})[0];
        ASSERT_TRUE(c.status.ok()) << c.status.message();
        EXPECT_LE(MaxDifference(c.prompt_logits, LastLogits(golden, name, engine->info().vocab_size)), kLogitGate);
        // Answers go on at positions that pictures have moved.
        if (chunk == 512) first.push_back(Ids(c));
        EXPECT_EQ(Ids(c), first[index++]);
      }
    }
  }
}

TEST(EngineVision, TogetherAsAlone) {
  for (const std::string family : {"qwen3_5", "qwen3_vl"}) {
    const std::string checkpoint = "vision/" + family;
    const Golden golden(GoldenDirectory(checkpoint) + "/golden.safetensors");
    EngineOptions options = Options(checkpoint);
    options.max_num_batched_tokens = 48;
    std::vector<Request> requests;
    for (const std::string name : {"one", "three", "sizes", "grid"}) requests.push_back(Case(checkpoint, golden, name));
    std::vector<int32_t> text;
    for (int32_t i = 0; i < 70; ++i) text.push_back(i * 11 % 300);
    requests.push_back(Greedy(text, 8));
    const auto together = Loaded(options), alone = Loaded(options);
    ASSERT_NE(together, nullptr);
    ASSERT_NE(alone, nullptr);
    const auto answers = Answers(*together, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(Ids(answers[i]), Ids(Answers(*alone, {requests[i]})[0])) << family << " " << i;
    }
  }
}

/// The same words about 32 slightly different pictures, with cached prefixes: no answer is another picture's.
TEST(EngineVision, PicturesAreInTheKeysOfThePrefixCache) {
  const std::string checkpoint = "vision/qwen3_5";
  const Golden golden(GoldenDirectory(checkpoint) + "/golden.safetensors");
  const vision::Processor processor = ProcessorOf(checkpoint);
  std::vector<Request> requests;
  for (int i = 0; i < 32; ++i) {
    Request r = Case(checkpoint, golden, "one");
    // Long enough for snapshots before and after the picture.
    std::vector<int32_t> before(100), after(150);
    for (size_t k = 0; k < after.size(); ++k) after[k] = static_cast<int32_t>(k * 7 % 300);
    for (size_t k = 0; k < before.size(); ++k) before[k] = static_cast<int32_t>(k * 13 % 300);
    r.prompt.insert(r.prompt.begin(), before.begin(), before.end());
    r.prompt.insert(r.prompt.end(), after.begin(), after.end());
    vision::Image picture = vision::testing::Picture(100, 70, 1);
    for (int k = 0; k <= i; ++k) picture.rgb[static_cast<size_t>(1000 + 600 * k)] ^= 0x80;
    r.vision[0] = processor.Process(picture)->input;
    if (i % 2 == 0) r.vision[0].hash = {};  // the engine makes its own
    r.prompt_logits = true;                 // tokens alone may agree by chance
    requests.push_back(r);
  }
  EngineOptions options = Options(checkpoint);
  const auto plain = Loaded(options);
  options.enable_prefix_caching = true;
  const auto caching = Loaded(options);
  ASSERT_NE(plain, nullptr);
  ASSERT_NE(caching, nullptr);
  const auto want = Answers(*plain, requests);
  for (int round = 0; round < 2; ++round) {
    const auto got = Answers(*caching, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(Ids(got[i]), Ids(want[i])) << round << " " << i;
      EXPECT_LE(MaxDifference(got[i].prompt_logits, want[i].prompt_logits), kSame) << round << " " << i;
      if (i > 0) {
        EXPECT_GT(MaxDifference(want[i].prompt_logits, want[i - 1].prompt_logits), 10 * kSame);
      }
    }
  }
  // A known picture with known text around it is not computed again; with another picture only what comes before.
  EXPECT_GE(Answers(*caching, {requests[31]})[0].cached_tokens, 192);
  Request other = requests[31];
  other.vision[0] = processor.Process(vision::testing::Picture(100, 70, 99))->input;
  EXPECT_LE(Answers(*caching, {other})[0].cached_tokens, 112);
}

TEST(EngineVision, EncoderBackends) {
  const std::string checkpoint = "vision/qwen2_5_vl";
  const Golden golden(GoldenDirectory(checkpoint) + "/golden.safetensors");
  const auto name_of = [](const Engine& engine) {
    for (const BackendUse& use : engine.backends()) {
      if (use.op == "vision_attention") return use.name;
    }
    return std::string();
  };
  EngineOptions options = Options(checkpoint);
  const auto chosen = Loaded(options);
  ASSERT_NE(chosen, nullptr);
  EXPECT_EQ(name_of(*chosen), "cpu");  // before any picture
  options.backends["vision_attention"] = "reference";
  const auto named = Loaded(options);
  ASSERT_NE(named, nullptr);
  EXPECT_EQ(name_of(*named), "reference");
  Request r = Case(checkpoint, golden, "three");
  r.prompt_logits = true;
  EXPECT_LE(MaxDifference(Answers(*named, {r})[0].prompt_logits, LastLogits(golden, "three", named->info().vocab_size)),
            kLogitGate);
  options.backends["vision_attention"] = "no such";
  EXPECT_EQ(Engine::Load(options).status().code(), Code::kInvalidArgument);
}

TEST(EngineVision, WrongRequestsAreNamed) {
  const std::string checkpoint = "vision/qwen3_5";
  const Golden golden(GoldenDirectory(checkpoint) + "/golden.safetensors");
  const auto engine = Loaded(Options(checkpoint));
  ASSERT_NE(engine, nullptr);
  const Request good = Case(checkpoint, golden, "three");
  EXPECT_TRUE(engine->Check(good).ok());
  const auto refused = [&](const Request& r, const std::string& part) {
    const Status s = engine->Check(r);
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << s.message();
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  };
  Request r = good;
  r.vision.pop_back();
  refused(r, "there are only 2 images and videos");
  r = good;
  r.vision.push_back(r.vision[0]);
  refused(r, "4 were given");
  r = good;
  std::swap(r.vision[0], r.vision[1]);
  refused(r, "in a row");
  r = good;
  r.vision[1].kind = VisionInput::Kind::kVideo;
  refused(r, "video 2 is next");
  r = good;
  r.vision[0].pixels = nullptr;
  refused(r, "image 1 has 0 pixel values");
  r = good;
  r.vision[2].grid[1] += 1;
  refused(r, "image 3 has a grid of");
  r = good;
  r.vision[2].grid = {1, int64_t{1} << 40, 2};
  refused(r, "image 3 has a grid of");
  r = good;
  r.prompt_keys = {{0, 20, "mine"}};
  refused(r, "images have keys of their own");

  const auto text = Loaded();
  ASSERT_NE(text, nullptr);
  EXPECT_NE(text->Check(good).message().find("takes no images"), std::string::npos);
}

/// Without items a placeholder is a token like any other, as in transformers.
TEST(EngineVision, PlaceholdersWithoutPicturesAreTokens) {
  const std::string checkpoint = "vision/qwen3_vl";
  const Golden golden(GoldenDirectory(checkpoint) + "/golden.safetensors");
  const auto engine = Loaded(Options(checkpoint));
  ASSERT_NE(engine, nullptr);
  Request r = Case(checkpoint, golden, "one");
  const auto seen = Ids(Answers(*engine, {r})[0]);
  r.vision.clear();
  const auto blind = Ids(Answers(*engine, {r})[0]);
  EXPECT_EQ(blind.size(), 8u);
  EXPECT_NE(blind, seen);
}

}  // namespace
}  // namespace fluvial
