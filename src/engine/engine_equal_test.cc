// SPDX-License-Identifier: Apache-2.0
// An answer depends on its request alone: 64 mixed requests, each first alone on a plain engine, then all together in
// many set-ups - chunk sizes, prefix cache, too little memory, cancellations - with the same tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>

#include "engine/engine_testkit.h"

namespace fluvial {
namespace {

using engine::testing::Greedy;
using engine::testing::Ids;
using engine::testing::Loaded;
using engine::testing::Options;

constexpr uint64_t kSeed = 20261130;
constexpr int kRequests = 64;

/// Requests of every kind; prompts end at, before and after multiples of 64, and many begin alike.
std::vector<Request> Mixed() {
  std::mt19937_64 random(kSeed);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto ids = [&](int n) {
    std::vector<int32_t> out;
    for (int i = 0; i < n; ++i) out.push_back(pick(0, 510));
    return out;
  };
  const std::vector<int32_t> system = ids(130), other = ids(200);
  constexpr int kLengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193, 250};
  std::vector<Request> out;
  for (int i = 0; i < kRequests; ++i) {
    const int n = kLengths[i % 15];
    std::vector<int32_t> prompt = i % 3 == 0 ? ids(n) : i % 3 == 1 ? system : other;
    if (i % 3 != 0) {
      prompt.resize(static_cast<size_t>(pick(60, static_cast<int>(prompt.size()))));
      const std::vector<int32_t> tail = ids(pick(0, 70));
      prompt.insert(prompt.end(), tail.begin(), tail.end());
    }
    Request r = Greedy(prompt, pick(1, 24));
    if (i % 2 == 1) {
      r.sampling.temperature = 0.8f;
      r.sampling.seed = static_cast<uint64_t>(i);
      r.sampling.top_p = i % 4 == 1 ? 0.95f : 1.0f;
      r.sampling.top_k = i % 8 == 3 ? 40 : 0;
    }
    if (i % 5 == 0) r.sampling.repetition_penalty = 1.2f;
    if (i % 7 == 0) r.sampling.frequency_penalty = 0.3f;
    if (i % 6 == 0) r.logprobs = 3;
    if (i % 9 == 0) r.prompt_logprobs = 2;
    if (i % 10 == 0) r.ignore_eos = false;
    if (i % 11 == 0) r.min_tokens = r.max_tokens / 2;
    if (i % 13 == 0) r.stop_ids = {7, 70, 170, 270, 370, 470};
    out.push_back(std::move(r));
  }
  return out;
}

struct Alone {
  std::vector<Request> requests = Mixed();
  std::vector<Completion> answers;
};

const Alone& Reference() {
  static const Alone reference = [] {
    Alone a;
    EngineOptions o = Options();
    o.max_num_seqs = 1;
    o.max_num_batched_tokens = 4096;
    const auto engine = Loaded(o);
    for (const Request& r : a.requests) {
      auto c = engine->Generate({r});
      EXPECT_TRUE(c.ok()) << c.status().message();
      a.answers.push_back(std::move((*c)[0]));
    }
    return a;
  }();
  return reference;
}

void ExpectSame(const Completion& got, const Completion& want, size_t index) {
  SCOPED_TRACE("request " + std::to_string(index));
  EXPECT_EQ(Ids(got), Ids(want));
  EXPECT_EQ(got.finish_reason, want.finish_reason);
  EXPECT_EQ(got.stop_id, want.stop_id);
  ASSERT_EQ(got.prompt_logprobs.size(), want.prompt_logprobs.size());
  for (size_t i = 0; i < got.prompt_logprobs.size(); ++i) {
    EXPECT_EQ(got.prompt_logprobs[i].id, want.prompt_logprobs[i].id);
    EXPECT_NEAR(got.prompt_logprobs[i].logprob, want.prompt_logprobs[i].logprob, 4e-4);
    EXPECT_EQ(got.prompt_logprobs[i].top.size(), i == 0 ? 0u : 2u);
  }
  for (size_t i = 0; i < std::min(got.tokens.size(), want.tokens.size()); ++i) {
    EXPECT_NEAR(got.tokens[i].logprob, want.tokens[i].logprob, 4e-4);
    EXPECT_EQ(got.tokens[i].top.size(), want.tokens[i].top.size());
  }
}

/// Nothing runs, waits or is held, apart from what the cache keeps.
void ExpectIdle(const Engine& engine) {
  const EngineStats s = engine.stats();
  EXPECT_EQ(s.requests_running, 0);
  EXPECT_EQ(s.requests_waiting, 0);
  EXPECT_EQ(s.kv_pages_used, 0);
  EXPECT_EQ(s.state_slots_used, 0);
  EXPECT_EQ(s.nan_aborts, 0);
  EXPECT_TRUE(s.snapshot_slots_total > 0 || s.kv_pages_cached == 0);
}

EngineOptions Many() {
  EngineOptions o = Options();
  o.max_num_seqs = 64;
  o.max_num_batched_tokens = 4096;
  return o;
}

void RunAll(const EngineOptions& o, EngineStats* stats = nullptr) {
  const Alone& alone = Reference();
  const auto engine = Loaded(o);
  ASSERT_NE(engine, nullptr);
  for (int round = 0; round < (o.enable_prefix_caching ? 2 : 1); ++round) {
    const auto answers = engine->Generate(alone.requests);
    ASSERT_TRUE(answers.ok()) << answers.status().message();
    for (size_t i = 0; i < answers->size(); ++i) ExpectSame((*answers)[i], alone.answers[i], i);
  }
  ExpectIdle(*engine);
  if (stats != nullptr) *stats = engine->stats();
}

class Chunks : public ::testing::TestWithParam<int64_t> {};

TEST_P(Chunks, SameAsAloneWithAndWithoutPrefixCache) {
  EngineOptions o = Many();
  o.long_prefill_token_threshold = GetParam();
  RunAll(o);
  o.enable_prefix_caching = true;
  o.prefix_cache_interval = 64;
  EngineStats stats;
  RunAll(o, &stats);
  EXPECT_GT(stats.prefix_cache_hits, 2000);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Chunks, ::testing::Values(1, 7, 64, 65, 0), [](const auto& info) {
  return info.param == 0 ? std::string("unlimited") : "chunk" + std::to_string(info.param);
});

TEST(EqualAnswers, SnapshotsAtTheEndsOfPromptsAndAnswers) {
  EngineOptions o = Many();
  o.enable_prefix_caching = true;
  o.prefix_cache_points = "all";
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 200;
  RunAll(o);
}

TEST(EqualAnswers, PreemptionIsForcedAndLeavesNoTrace) {
  for (const bool cache : {false, true}) {
    for (const int32_t page : {16, 5}) {
      SCOPED_TRACE("cache " + std::to_string(cache) + " page " + std::to_string(page));
      EngineOptions o = Many();
      o.max_num_seqs = 16;
      o.max_num_batched_tokens = 256;
      o.max_model_len = 300;
      o.block_size = page;
      o.kv_cache_tokens = 700;  // two or three of the longest
      o.enable_prefix_caching = cache;
      o.prefix_cache_interval = 64;
      EngineStats stats;
      RunAll(o, &stats);
      EXPECT_GT(stats.preemptions, 5);
    }
  }
}

TEST(EqualAnswers, CancellationsLeaveTheOthersAlone) {
  const Alone& alone = Reference();
  for (const bool tight : {false, true}) {
    EngineOptions o = Many();
    o.max_num_seqs = 12;
    o.max_num_batched_tokens = 256;
    o.enable_prefix_caching = true;
    o.prefix_cache_interval = 64;
    if (tight) o.kv_cache_tokens = 800;
    const auto engine = Loaded(o);
    ASSERT_NE(engine, nullptr);
    std::mt19937_64 random(kSeed + 1);
    std::vector<Completion> answers(kRequests * 2);
    std::vector<uint64_t> ids(kRequests * 2);
    size_t left = ids.size();
    for (size_t i = 0; i < ids.size(); ++i) {
      // Every second one is a twin that may be cancelled.
      auto id = engine->Submit(alone.requests[i / 2], {}, [&answers, &left, i](uint64_t, Completion c) {
        answers[i] = std::move(c);
        --left;
      });
      ASSERT_TRUE(id.ok());
      ids[i] = *id;
    }
    while (left > 0) {
      if (random() % 2 == 0) engine->Cancel(ids[(random() % kRequests) * 2 + 1]);
      ASSERT_TRUE(engine->Step().ok());
    }
    int cancelled = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (answers[i].finish_reason == FinishReason::kCancelled) {
        EXPECT_EQ(i % 2, 1u);
        ++cancelled;
        // What it had said by then was right.
        const auto got = Ids(answers[i]), want = Ids(alone.answers[i / 2]);
        ASSERT_LE(got.size(), want.size());
        EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()));
      } else {
        ExpectSame(answers[i], alone.answers[i / 2], i);
      }
    }
    EXPECT_GT(cancelled, 10);
    ExpectIdle(*engine);
  }
}

/// Bit for bit, and in bf16, where a different order of sums would show: the logits after the prompt and all answers.
class BitForBit : public ::testing::TestWithParam<const char*> {};

TEST_P(BitForBit, WhateverTheCompanyTheCacheAndTheMemory) {
  std::vector<Request> requests = Mixed();
  EngineOptions o = Options(GetParam());
  o.max_num_seqs = 1;
  // "cpu" takes the form of latent attention that is cheaper for a piece's length: another split, other sums.
  if (std::string(GetParam()).starts_with("kimi")) o.backends["mla_attention"] = "cpu_absorbed";
  const auto plain = Loaded(o);
  ASSERT_NE(plain, nullptr);
  for (Request& r : requests) {
    r.logprobs = 4;
    r.prompt_logits = true;
    r.prompt_logprobs = -1;
    for (int32_t& id : r.prompt) id = static_cast<int32_t>(id % plain->info().vocab_size);
    for (int32_t& id : r.stop_ids) id = static_cast<int32_t>(id % plain->info().vocab_size);
  }
  std::vector<Completion> want;
  for (const Request& r : requests) want.push_back(std::move((*plain->Generate({r}))[0]));
  o.max_num_seqs = 10;
  o.max_num_batched_tokens = 150;
  o.kv_cache_tokens = 800;
  o.enable_prefix_caching = true;
  o.prefix_cache_interval = 128;
  const auto busy = Loaded(o);
  ASSERT_NE(busy, nullptr);
  for (int round = 0; round < 2; ++round) {
    const auto got = busy->Generate(requests);
    ASSERT_TRUE(got.ok());
    for (size_t i = 0; i < got->size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      EXPECT_EQ((*got)[i].prompt_logits, want[i].prompt_logits);
      ASSERT_EQ(Ids((*got)[i]), Ids(want[i]));
      for (size_t t = 0; t < want[i].tokens.size(); ++t) {
        EXPECT_EQ((*got)[i].tokens[t].logprob, want[i].tokens[t].logprob);
        EXPECT_EQ((*got)[i].tokens[t].top, want[i].tokens[t].top);
      }
    }
  }
  EXPECT_GT(busy->stats().preemptions, 5);
  EXPECT_GT(busy->stats().prefix_cache_hits, 1000);
}

INSTANTIATE_TEST_SUITE_P(Models, BitForBit,
                         ::testing::Values("qwen3_5/text", "qwen3_5/text_bf16", "kimi_linear/text", "qwen_moe/next",
                                           "qwen_moe/next_bf16", "glm5_next/text"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace fluvial
