// SPDX-License-Identifier: Apache-2.0
#include "ops/vision_attention/suites.h"

#include "ops/common/suites.h"

namespace fluvial::ops::vision_attention {
namespace {

// Anchors: one H200, bf16, cuDNN 9.19 (dense batches) and FlashAttention-2 varlen through torch 2.11, median of events.
constexpr SuiteText kSuites[] = {
    {"qwen2_5_vl", R"(# 16 heads of 80; 28 of 32 layers attend within windows of 64 tokens, 4 within a frame.
vision_attention heads=16 d=80 lens=64x64 | cudnn=29.9 fa2=33.9
vision_attention heads=16 d=80 lens=256x64 | cudnn=96.8 fa2=106
vision_attention heads=16 d=80 lens=1024x64
vision_attention heads=16 d=80 lens=4096 | cudnn=212 fa2=334
vision_attention heads=16 d=80 lens=16384 | cudnn=3367 fa2=5061
vision_attention heads=16 d=80 lens=1024,4096,256,2048,576,192 | fa2=504
# A page of 1288 x 1960 pixels, 92 x 140 patches: its windows row by row, and the whole image.
vision_attention heads=16 d=80 lens=17x64,32,17x64,32,17x64,32,17x64,32,17x64,32,17x64,32,17x64,32,17x64,32,17x64,32,17x64,32,17x64,32,17x32,16
vision_attention heads=16 d=80 lens=12880
)"},
    {"qwen3_vl", R"(# 16 heads of 72 (8B and smaller), full attention within a frame.
vision_attention heads=16 d=72 lens=4096 | cudnn=217 fa2=353
vision_attention heads=16 d=72 lens=16384 | cudnn=3432 fa2=5236
vision_attention heads=16 d=72 lens=8x1024 | cudnn=121 fa2=191
vision_attention heads=16 d=72 lens=1024,4096,256,2048,576,192 | fa2=529
vision_attention heads=16 d=64 lens=4096 | cudnn=151 fa2=230
vision_attention heads=16 d=128 lens=4096 | cudnn=221 fa2=393
)"},
};

}  // namespace

std::vector<std::string> SuiteNames() {
  std::vector<std::string> names;
  for (const SuiteText& s : kSuites) names.emplace_back(s.name);
  return names;
}

Result<std::vector<SuiteEntry>> Suite(std::string_view name) {
  std::string names;
  for (const SuiteText& s : kSuites) {
    names += (names.empty() ? "" : ", ") + std::string(s.name);
    if (s.name != name) continue;
    FLUVIAL_ASSIGN_OR_RETURN(std::vector<SuiteRow> rows, ParseSuiteRows(s.text));
    std::vector<SuiteEntry> out;
    for (SuiteRow& row : rows) {
      FLUVIAL_ASSIGN_OR_RETURN(ProblemLine line, ParseProblemLine(row.line));
      out.push_back({std::move(line), std::move(row.anchors)});
    }
    return out;
  }
  return Status::InvalidArgument("there is no suite '" + std::string(name) + "'; suites: " + names);
}

}  // namespace fluvial::ops::vision_attention
