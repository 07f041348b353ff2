// SPDX-License-Identifier: Apache-2.0
#include "tools/engine_flags.h"

#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

namespace fluvial::tools {
namespace {

/// Parses with fresh flags; kInvalidArgument when CLI11 refuses.
Result<EngineOptions> Parsed(const std::string& line) {
  CLI::App app;
  EngineFlags flags;
  AddEngineFlags(app, flags);
  AddBatchingFlags(app, flags);
  try {
    app.parse(line);
  } catch (const CLI::ParseError& e) {
    return Status::InvalidArgument(e.what());
  }
  return ToEngineOptions(flags);
}

TEST(EngineFlags, LeftOutTheyAreTheEnginesDefaults) {
  const auto o = Parsed("some/model");
  ASSERT_TRUE(o.ok()) << o.status().message();
  const EngineOptions d;
  EXPECT_EQ(o->model, "some/model");
  EXPECT_EQ(o->max_num_seqs, d.max_num_seqs);
  EXPECT_EQ(o->memory_limit, 0u);
  EXPECT_FALSE(o->enable_prefix_caching);
  EXPECT_EQ(o->prefix_cache_interval, d.prefix_cache_interval);
  EXPECT_EQ(o->prefix_cache_points, "grid");
  EXPECT_EQ(o->mamba_cache_dtype, "auto");
}

TEST(EngineFlags, CachesAndMemory) {
  const auto o = Parsed(
      "m --enable-prefix-caching --prefix-cache-size 2GB --prefix-cache-interval 256 --prefix-cache-points all "
      "--memory-limit 1536MB --max-num-seqs 32 --kv-cache-tokens 4096 --long-prefill-token-threshold 128 "
      "--mamba-cache-dtype float32 --mamba-ssm-cache-dtype bfloat16");
  ASSERT_TRUE(o.ok()) << o.status().message();
  EXPECT_TRUE(o->enable_prefix_caching);
  EXPECT_EQ(o->prefix_cache_bytes, uint64_t{2} << 30);
  EXPECT_EQ(o->prefix_cache_interval, 256);
  EXPECT_EQ(o->prefix_cache_points, "all");
  EXPECT_EQ(o->memory_limit, uint64_t{1536} << 20);
  EXPECT_EQ(o->max_num_seqs, 32);
  EXPECT_EQ(o->kv_cache_tokens, 4096);
  EXPECT_EQ(o->long_prefill_token_threshold, 128);
  EXPECT_EQ(o->mamba_cache_dtype, "float32");
  EXPECT_EQ(o->mamba_ssm_cache_dtype, "bfloat16");
  EXPECT_EQ(Parsed("m --memory-limit 1000")->memory_limit, 1000u);
}

TEST(EngineFlags, NonsenseIsRefused) {
  for (const char* line :
       {"m --memory-limit lots", "m --memory-limit -1GB", "m --prefix-cache-size 5XB", "m --max-num-seqs many",
        "m --prefix-cache-interval 1.5", "m --gdn-prefill-backend nonsense"}) {
    const auto o = Parsed(line);
    ASSERT_FALSE(o.ok()) << line;
    EXPECT_EQ(o.status().code(), Code::kInvalidArgument) << line;
  }
}

}  // namespace
}  // namespace fluvial::tools
