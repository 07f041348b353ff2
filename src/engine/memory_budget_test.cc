// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_budget.h"

#include <gtest/gtest.h>

#include "engine/engine_testkit.h"

namespace fluvial::engine {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

MemoryRequest Request() {
  MemoryRequest r;
  r.weights = 1000 * kMiB;
  r.workspace = 100 * kMiB;
  r.page_bytes = kMiB;
  r.slot_bytes = 20 * kMiB;
  r.page_size = 16;
  r.max_model_len = 1600;  // 100 pages
  r.sequences = 4;         // 5 slots: 100 MiB
  r.limit_source = "a test";
  return r;
}

TEST(MemoryBudget, RoomForEverybodyWhereTheLimitAllows) {
  MemoryRequest r = Request();
  EXPECT_EQ(PlanMemory(r)->pages, 400);  // no limit known
  r.limit = 1600 * kMiB;                 // exactly
  auto b = PlanMemory(r);
  ASSERT_TRUE(b.ok()) << b.status().message();
  EXPECT_EQ(b->pages, 400);
  EXPECT_EQ(b->snapshots, 0);
  EXPECT_EQ(b->text,
            "memory: weights 1000.0 MiB + KV cache 400.0 MiB (6400 tokens) + states 100.0 MiB (4 requests) + workspace "
            "100.0 MiB = 1.56 GiB of 1.56 GiB (a test)");
  r.limit = 1350 * kMiB;  // less: as many pages as there is room for
  EXPECT_EQ(PlanMemory(r)->pages, 150);
}

TEST(MemoryBudget, RefusesWithTheNumbers) {
  MemoryRequest r = Request();
  r.limit = 1299 * kMiB;  // one page short of a single longest request
  const auto b = PlanMemory(r);
  ASSERT_FALSE(b.ok());
  EXPECT_EQ(b.status().code(), Code::kResource);
  for (const char* part : {"1.27 GiB", "weights 1000.0 MiB", "KV cache 100.0 MiB (1600 tokens)", "states 100.0 MiB",
                           "workspace 100.0 MiB", "max_model_len", "memory_limit", "a test"}) {
    EXPECT_NE(b.status().message().find(part), std::string::npos) << part << ": " << b.status().message();
  }
  r.limit = 1300 * kMiB;
  EXPECT_EQ(PlanMemory(r)->pages, 100);
  r.kv_cache_tokens = 1601;  // a wish is kept or refused, never cut
  EXPECT_EQ(PlanMemory(r).status().code(), Code::kResource);
  r.limit = 0;
  EXPECT_EQ(PlanMemory(r)->pages, 101);
  r.kv_cache_tokens = int64_t{1} << 40;
  EXPECT_EQ(PlanMemory(r).status().code(), Code::kInvalidArgument);
}

TEST(MemoryBudget, SnapshotsHaveTheirOwnShare) {
  MemoryRequest r = Request();
  r.prefix_caching = true;
  EXPECT_EQ(PlanMemory(r)->snapshots, 16);
  r.sequences = 32;
  EXPECT_EQ(PlanMemory(r)->snapshots, 128);
  r.sequences = 4;
  r.prefix_cache_bytes = 205 * kMiB;
  EXPECT_EQ(PlanMemory(r)->snapshots, 10);
  EXPECT_NE(PlanMemory(r)->text.find("snapshots 200.0 MiB (10)"), std::string::npos) << PlanMemory(r)->text;
  r.prefix_cache_bytes = 20 * kMiB - 1;
  EXPECT_EQ(PlanMemory(r).status().code(), Code::kInvalidArgument);
  // Without a wish at most a quarter of what weights, workspace and running requests leave.
  r.prefix_cache_bytes = 0;
  r.limit = 1600 * kMiB;
  EXPECT_EQ(PlanMemory(r)->snapshots, 5);
  EXPECT_EQ(PlanMemory(r)->pages, 300);
  // A model without states has snapshots for nothing.
  r.slot_bytes = 0;
  EXPECT_GT(PlanMemory(r)->snapshots, 1000);
}

TEST(MemoryBudget, TheEngineKeepsToTheLimit) {
  EngineOptions o = testing::Options();
  o.enable_prefix_caching = true;
  const auto engine = testing::Loaded(o);
  ASSERT_NE(engine, nullptr);
  const EngineStats s = engine->stats();
  const uint64_t all = s.weight_bytes + s.kv_bytes + s.state_bytes + s.workspace_bytes +
                       static_cast<uint64_t>(o.max_num_seqs) * 512 * sizeof(float);  // rows of logits
  EXPECT_GT(s.snapshot_bytes, 0u);
  EXPECT_EQ(s.kv_pages_total, 8 * 512 / 16);
  EXPECT_NE(engine->info().memory.find("snapshots"), std::string::npos) << engine->info().memory;
  o.memory_limit = all;
  EXPECT_TRUE(Engine::Load(o).ok());
  o.memory_limit = s.weight_bytes;
  const auto refused = Engine::Load(o);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kResource);
  o.memory_limit = 0;
  o.prefix_cache_interval = 100;
  EXPECT_EQ(Engine::Load(o).status().code(), Code::kInvalidArgument);
  o.prefix_cache_interval = 0;
  o.prefix_cache_points = "some";
  EXPECT_EQ(Engine::Load(o).status().code(), Code::kInvalidArgument);
  o.prefix_cache_points = "grid";
  o.prefix_cache_bytes = 1;
  EXPECT_EQ(Engine::Load(o).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace fluvial::engine
