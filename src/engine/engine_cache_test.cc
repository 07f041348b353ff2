// SPDX-License-Identifier: Apache-2.0
// The prefix cache over a real model: what hits, how much, for whom, and that nobody gets another's state.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "engine/engine_testkit.h"

namespace fluvial {
namespace {

using engine::testing::Greedy;
using engine::testing::Ids;
using engine::testing::Loaded;
using engine::testing::Options;

std::vector<int32_t> Random(uint64_t seed, int n) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> out;
  for (int i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(random() % 510));
  return out;
}

std::vector<int32_t> Joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

EngineOptions Caching() {
  EngineOptions o = Options();
  o.max_model_len = 2048;
  o.enable_prefix_caching = true;
  return o;
}

Completion Answer(Engine& engine, const Request& request) {
  auto answers = engine.Generate({request});
  EXPECT_TRUE(answers.ok()) << answers.status().message();
  return answers.ok() ? std::move((*answers)[0]) : Completion();
}

/// The same request on an engine without a cache.
Completion Cold(const Request& request) {
  static const std::unique_ptr<Engine> engine = [] {
    EngineOptions o = Caching();
    o.enable_prefix_caching = false;
    return Loaded(o);
  }();
  return Answer(*engine, request);
}

void ExpectEqual(const Completion& got, const Completion& want) {
  EXPECT_EQ(Ids(got), Ids(want));
  EXPECT_EQ(got.prompt_logits, want.prompt_logits);
  EXPECT_EQ(got.finish_reason, want.finish_reason);
}

Request Full(const std::vector<int32_t>& prompt, int64_t max_tokens = 8) {
  Request r = Greedy(prompt, max_tokens);
  r.prompt_logits = true;
  return r;
}

TEST(PrefixCache, TheSamePromptHitsAtTheLastMultipleOf64) {
  // Lengths around pages and the grid, on a fresh engine each: the first step after the start, too.
  for (const int n : {1, 2, 15, 16, 17, 63, 64, 65, 66, 79, 80, 127, 128, 129, 144, 191, 192, 193, 577}) {
    SCOPED_TRACE(n);
    const auto engine = Loaded(Caching());
    ASSERT_NE(engine, nullptr);
    const Request r = Full(Random(1, n));
    const Completion cold = Cold(r);
    for (int round = 0; round < 3; ++round) {
      const Completion c = Answer(*engine, r);
      EXPECT_EQ(c.cached_tokens, round == 0 ? 0 : (n - 1) / 64 * 64);
      ExpectEqual(c, cold);
    }
    const EngineStats s = engine->stats();
    EXPECT_EQ(s.prefix_cache_queries, 3 * n);
    EXPECT_EQ(s.prefix_cache_hits, 2 * ((n - 1) / 64 * 64));
    EXPECT_EQ(s.prompt_tokens, 3 * n - s.prefix_cache_hits);
  }
}

TEST(PrefixCache, SharedPrefixesHitWhateverTheSuffix) {
  EngineOptions o = Caching();
  for (const int64_t interval : {int64_t{0}, int64_t{512}}) {
    SCOPED_TRACE("interval " + std::to_string(interval));
    o.prefix_cache_interval = interval;
    const auto engine = Loaded(o);
    ASSERT_NE(engine, nullptr);
    const std::vector<int32_t> prefix = Random(2, 600);
    int64_t round = 0;
    for (const int suffix : {376, 40, 1296, 3, 64, 70}) {
      SCOPED_TRACE("suffix " + std::to_string(suffix));
      const Request r = Full(Joined(prefix, Random(100 + static_cast<uint64_t>(suffix), suffix)));
      const Completion c = Answer(*engine, r);
      ExpectEqual(c, Cold(r));
      // The second request finds where they part and leaves a snapshot there, at 576 of 600; without an interval it has
      // nothing to start from itself, as the first one's last place lies beyond.
      EXPECT_EQ(c.cached_tokens, round == 0 ? 0 : round == 1 ? (interval > 0 ? 512 : 0) : 576);
      ++round;
    }
  }
}

TEST(PrefixCache, EveryDistanceFromABlockEdge) {
  // Request A ends d tokens past an edge; B shares its prompt and goes on.
  EngineOptions o = Caching();
  o.prefix_cache_points = "all";
  for (const char* points : {"grid", "all"}) {
    o.prefix_cache_points = points;
    const auto engine = Loaded(o);
    ASSERT_NE(engine, nullptr);
    for (int d = 0; d <= 17; ++d) {
      SCOPED_TRACE(std::string(points) + " d " + std::to_string(d));
      const Request a = Full(Random(1000 + static_cast<uint64_t>(d), 128 + d), 3);
      ExpectEqual(Answer(*engine, a), Cold(a));
      const Request b = Full(Joined(a.prompt, Random(7, 9)), 8);
      const Completion got = Answer(*engine, b), want = Cold(b);
      EXPECT_EQ(Ids(got), Ids(want));
      EXPECT_LE(models::testing::MaxDifference(got.prompt_logits, want.prompt_logits), 2e-4);
      EXPECT_EQ(got.cached_tokens, std::string(points) == "all" ? 128 + d : 128);
    }
    EXPECT_EQ(engine->stats().nan_aborts, 0);
  }
}

TEST(PrefixCache, ConversationsGoOnWhereTheyStopped) {
  for (const bool all : {false, true}) {
    EngineOptions o = Caching();
    o.prefix_cache_points = all ? "all" : "grid";
    const auto engine = Loaded(o);
    ASSERT_NE(engine, nullptr);
    std::vector<int32_t> history = Random(3, 150);
    int64_t before = 0;
    for (int turn = 0; turn < 5; ++turn) {
      SCOPED_TRACE(std::string(all ? "all" : "grid") + " turn " + std::to_string(turn));
      const Request r = Full(history, 40);
      const Completion c = Answer(*engine, r), cold = Cold(r);
      EXPECT_EQ(Ids(c), Ids(cold));
      // With all points only what is new is computed: the last token drawn and what the user says.
      EXPECT_EQ(c.cached_tokens, turn == 0 ? 0 : all ? before + 39 : before / 64 * 64);
      before = static_cast<int64_t>(history.size());
      history = Joined(Joined(history, Ids(c)), Random(50 + static_cast<uint64_t>(turn), 20));
    }
  }
}

TEST(PrefixCache, OtherImagesAndOptionsAreOtherPrompts) {
  const auto engine = Loaded(Caching());
  ASSERT_NE(engine, nullptr);
  // The same ids; 32 images, asked for at the same time.
  const std::vector<int32_t> prompt = Random(4, 200);
  std::vector<Request> requests;
  for (int i = 0; i < 32; ++i) {
    Request r = Greedy(prompt, 2);
    r.prompt_keys = {{70, 130, "image " + std::to_string(i) + " max_pixels=1003520"}};
    requests.push_back(r);
  }
  auto answers = engine->Generate(requests);
  ASSERT_TRUE(answers.ok());
  // What comes before the image is shared, and nothing from it on.
  for (const Completion& c : *answers) EXPECT_LE(c.cached_tokens, 64);
  EXPECT_EQ(Answer(*engine, requests[31]).cached_tokens, 192);
  requests[31].prompt_keys[0].key = "image 31 max_pixels=501760";
  EXPECT_EQ(Answer(*engine, requests[31]).cached_tokens, 64);
  EXPECT_EQ(Answer(*engine, requests[31]).cached_tokens, 192);
  requests[31].prompt_keys[0].begin = 69;
  EXPECT_EQ(Answer(*engine, requests[31]).cached_tokens, 64);
  // A key of no tokens at the start separates everything.
  requests[31].prompt_keys.insert(requests[31].prompt_keys.begin(), {0, 0, "tenant"});
  EXPECT_EQ(Answer(*engine, requests[31]).cached_tokens, 0);

  Request bad = Greedy(prompt, 2);
  for (const std::vector<PromptKey>& keys :
       {std::vector<PromptKey>{{5, 4, ""}}, {{0, 201, ""}}, {{-1, 3, ""}}, {{0, 9, ""}, {8, 10, ""}}}) {
    bad.prompt_keys = keys;
    EXPECT_EQ(engine->Check(bad).code(), Code::kInvalidArgument);
  }
}

TEST(PrefixCache, SeveralAnswersToOnePromptComputeItOnce) {
  const auto engine = Loaded(Caching());
  ASSERT_NE(engine, nullptr);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 6; ++i) {
    Request r = Full(Random(5, 500), 10);
    r.sampling.temperature = 1;
    r.sampling.seed = i;
    requests.push_back(r);
  }
  const auto answers = engine->Generate(requests);
  ASSERT_TRUE(answers.ok());
  std::set<std::vector<int32_t>> different;
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectEqual((*answers)[i], Cold(requests[i]));
    EXPECT_EQ((*answers)[i].cached_tokens, i == 0 ? 0 : 448);
    different.insert(Ids((*answers)[i]));
  }
  EXPECT_EQ(different.size(), requests.size());
  EXPECT_EQ(engine->stats().prompt_tokens, 500 + 5 * 52);
}

TEST(PrefixCache, NotFiniteStatesAreForgotten) {
  // A NaN row of the embedding, as in the engine's test.
  const std::vector<int32_t> prompt = Random(6, 300);  // ids below 510
  const models::testing::AlteredCheckpoint copy(Options().model, engine::testing::NotANumber(510));
  EngineOptions o = Caching();
  o.model = copy.path();
  o.max_num_seqs = 2;
  o.prefix_cache_interval = 64;
  const auto engine = Loaded(o);
  ASSERT_NE(engine, nullptr);
  Request poisoned = Full(prompt);
  poisoned.prompt[100] = 510;
  const Request clean = Full(prompt);
  for (int round = 0; round < 3; ++round) {
    const auto answers = engine->Generate({poisoned, clean, poisoned});
    ASSERT_TRUE(answers.ok());
    for (const size_t i : {0, 2}) {
      EXPECT_EQ((*answers)[i].finish_reason, FinishReason::kError);
      EXPECT_EQ((*answers)[i].status.code(), Code::kFailed);
    }
    EXPECT_EQ(Ids((*answers)[1]), Ids(Cold(clean)));
  }
  EXPECT_EQ(engine->stats().nan_aborts, 6);
  // What is left in the cache is the clean prompt's.
  EXPECT_EQ(Answer(*engine, clean).cached_tokens, 256);
}

TEST(PrefixCache, WhatIsKeptNeverStandsInTheWayOfRequests) {
  EngineOptions o = Caching();
  o.max_model_len = 512;
  o.max_num_seqs = 4;
  o.kv_cache_tokens = 4 * 512;  // room for the requests and for nothing else
  o.prefix_cache_interval = 64;
  const auto engine = Loaded(o);
  ASSERT_NE(engine, nullptr);
  for (uint64_t round = 0; round < 6; ++round) {
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 4; ++i) requests.push_back(Greedy(Random(round * 4 + i, 490), 20));
    const auto answers = engine->Generate(requests);
    ASSERT_TRUE(answers.ok());
    for (const Completion& c : *answers) {
      EXPECT_EQ(c.finish_reason, FinishReason::kLength);
      EXPECT_EQ(c.preemptions, 0);
    }
  }
  const EngineStats s = engine->stats();
  EXPECT_EQ(s.preemptions, 0);
  EXPECT_EQ(s.kv_pages_used, 0);
  EXPECT_GT(s.kv_pages_cached, 0);
  EXPECT_LE(s.snapshot_slots_used, s.snapshot_slots_total);
  // All of it is there for one that needs it.
  EXPECT_EQ(Answer(*engine, Greedy(Random(99, 500), 12)).finish_reason, FinishReason::kLength);
}

TEST(PrefixCache, ClientsThatLeaveFreeEverythingAtOnce) {
  for (const bool cache : {false, true}) {
    EngineOptions o = Caching();
    o.enable_prefix_caching = cache;
    o.max_num_seqs = 16;
    const auto engine = Loaded(o);
    ASSERT_NE(engine, nullptr);
    const EngineStats start = engine->stats();
    int left = 200, ended = 0;
    std::vector<uint64_t> ids;
    for (int i = 0; i < left; ++i) {
      auto id = engine->Submit(
          Greedy(Random(static_cast<uint64_t>(i % 20), 20 + i % 90), 400),
          [&, seen = 0](uint64_t request, const Token&) mutable {
            if (++seen == 3) engine->Cancel(request);
            return Next::kContinue;
          },
          [&](uint64_t, Completion c) {
            EXPECT_EQ(c.finish_reason, FinishReason::kCancelled);
            EXPECT_LE(c.tokens.size(), 4u);
            ++ended;
            // By then nothing of it is left.
            EXPECT_LE(engine->stats().requests_running, 16);
          });
      ASSERT_TRUE(id.ok());
    }
    EXPECT_EQ(engine->stats().requests_waiting, left);
    while (*engine->Step()) {
    }
    EXPECT_EQ(ended, left);
    const EngineStats s = engine->stats();
    EXPECT_EQ(s.requests_running, 0);
    EXPECT_EQ(s.requests_waiting, 0);
    EXPECT_EQ(s.kv_pages_used, start.kv_pages_used);
    EXPECT_EQ(s.state_slots_used, start.state_slots_used);
    EXPECT_TRUE(cache || s.kv_pages_cached == 0);
  }
}

TEST(PrefixCache, TheNewestGivesWayAndComesBack) {
  EngineOptions o = Options();
  o.max_num_seqs = 3;
  o.kv_cache_tokens = 400;
  o.max_model_len = 300;
  const auto engine = Loaded(o);
  ASSERT_NE(engine, nullptr);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 3; ++i) requests.push_back(Greedy(Random(200 + i, 90), 100));
  const auto answers = engine->Generate(requests);
  ASSERT_TRUE(answers.ok());
  EXPECT_EQ((*answers)[0].preemptions, 0);  // the oldest never waits for a younger one
  EXPECT_GT((*answers)[2].preemptions, 0);
  for (size_t i = 0; i < 3; ++i) {
    const Completion cold = Cold(requests[i]);
    EXPECT_EQ(Ids((*answers)[i]), Ids(cold));
    EXPECT_EQ((*answers)[i].tokens.size(), 100u);
  }
  const EngineStats s = engine->stats();
  EXPECT_EQ(s.preemptions, (*answers)[1].preemptions + (*answers)[2].preemptions);
  EXPECT_EQ(s.generated_tokens, 300);
}

TEST(PromptLogprobs, EveryPromptTokenAgainstTransformers) {
  const models::testing::Golden golden(Options().model + "/golden.safetensors");
  EngineOptions o = Caching();
  for (const int64_t chunk : {0, 7}) {
    o.long_prefill_token_threshold = chunk;
    const auto engine = Loaded(o);
    ASSERT_NE(engine, nullptr);
    for (const int n : {1, 2, 65, 300}) {
      SCOPED_TRACE("prompt " + std::to_string(n));
      const std::string key = "p" + std::to_string(n) + ".";
      Request r = Greedy(golden.Ints(key + "ids"), 2);
      r.prompt_logprobs = 3;
      for (int round = 0; round < 2; ++round) {  // the second time the cache is warm, and must not cut rows
        const Completion c = Answer(*engine, r);
        EXPECT_EQ(c.cached_tokens, 0);
        ASSERT_EQ(c.prompt_logprobs.size(), static_cast<size_t>(n));
        EXPECT_TRUE(c.prompt_logprobs[0].top.empty());
        for (int i = 0; i < n; ++i)
          EXPECT_EQ(c.prompt_logprobs[static_cast<size_t>(i)].id, r.prompt[static_cast<size_t>(i)]);
        // Rows of logits that transformers' file holds.
        const auto positions = golden.Ints(key + "positions");
        const auto logits = golden.Floats(key + "logits");
        for (size_t p = 0; p < positions.size(); ++p) {
          const auto next = static_cast<size_t>(positions[p]) + 1;
          if (next >= static_cast<size_t>(n)) continue;
          const auto row = models::testing::Row(logits, static_cast<int64_t>(p), engine->info().vocab_size);
          double sum = 0;
          for (const float x : row) sum += std::exp(static_cast<double>(x));
          const Token& t = c.prompt_logprobs[next];
          EXPECT_NEAR(t.logprob, row[static_cast<size_t>(t.id)] - std::log(sum), 4e-4);
          ASSERT_EQ(t.top.size(), 3u);
          EXPECT_NEAR(t.top[0].second, row[static_cast<size_t>(models::testing::Argmax(row))] - std::log(sum), 4e-4);
        }
      }
    }
    Request bad = Greedy({1}, 1);
    for (const int32_t k : {-2, 1025}) {
      bad.prompt_logprobs = k;
      EXPECT_EQ(engine->Check(bad).code(), Code::kInvalidArgument);
    }
  }
}

}  // namespace
}  // namespace fluvial
