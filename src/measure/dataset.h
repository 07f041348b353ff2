// SPDX-License-Identifier: Apache-2.0
// What is sent: prompts of random tokens, of a file with prompts, of a ShareGPT file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fluvial/status.h"
#include "text/tokenizer.h"

namespace fluvial::measure {

struct BenchPrompt {
  std::vector<int32_t> ids;  ///< not empty: sent instead of the text, by /v1/completions
  std::string text;
  std::vector<std::string> images;  ///< data: URLs, before the text; chat only
  int64_t prompt_tokens = 0;        ///< 0: not known before the server says so
  int64_t max_tokens = 128;
};

struct RandomShape {
  int64_t input_len = 1024, output_len = 128;
  double range_ratio = 0;  ///< lengths are uniform in len * (1 - r) .. len * (1 + r); 0 <= r < 1
  int64_t prefix_len = 0;  ///< tokens that all prompts share, before input_len others
};

/// Uniform over the vocabulary's ordinary tokens. kInvalidArgument for lengths below 1.
Result<std::vector<BenchPrompt>> RandomPrompts(const text::Tokenizer& tokenizer, const RandomShape& shape,
                                               int64_t count, uint64_t seed);

/// Lines {"prompt": TEXT} with "output_tokens" where a line has its own; else `output_len`. When the file has fewer
/// than `count` lines, it is gone through again.
Result<std::vector<BenchPrompt>> CustomPrompts(const std::string& path, int64_t output_len, int64_t count);

/// First turn and length of the answer of conversations, shuffled, pruned as vLLM does: both at least 4 tokens, prompt
/// at most 1024, together at most 2048. output_len > 0 replaces the length of the answer.
Result<std::vector<BenchPrompt>> ShareGptPrompts(const std::string& path, const text::Tokenizer& tokenizer,
                                                 int64_t output_len, int64_t count, uint64_t seed);

/// The whole file; kUnusableModel when it cannot be read.
Result<std::string> ReadFile(const std::string& path);

/// "data:image/png;base64,..." of an image file, its type taken from its first bytes.
Result<std::string> ImageUrl(const std::string& path);

}  // namespace fluvial::measure
