// SPDX-License-Identifier: Apache-2.0
// The provider's table, row by row: who takes what, and what a refusal says.
#include "ops/delta_rule/flashinfer_names.h"

#include <gtest/gtest.h>

#include <string>

namespace fluvial::ops::delta_rule {
namespace {

struct Row {
  const char* name;
  const char* line;
  const char* arch;
  ProviderSituation situation;
  const char* refusal;  ///< part of the reason; nullptr when it must accept
};

const std::string kKdaLine = "kda_prefill lens=8192 hk=96 gate=bounded:-5 norm=none ";

void Expect(const Row& row) {
  const auto line = ParseProblemLine(row.line);
  ASSERT_TRUE(line.ok()) << row.line << ": " << line.status().message();
  const auto device = AssumedDevice(row.arch);
  ASSERT_TRUE(device.ok()) << row.arch;
  const auto check = CheckFlashInfer(row.name, line->problem, *device, row.situation);
  ASSERT_TRUE(check.ok()) << row.name << ": " << check.status().message();
  if (row.refusal == nullptr) {
    EXPECT_TRUE(check->ok()) << row.name << " on " << row.arch << " with " << row.line << ": " << check->reason();
  } else {
    EXPECT_FALSE(check->ok()) << row.name << " on " << row.arch << " with " << row.line;
    EXPECT_NE(check->reason().find(row.refusal), std::string::npos) << row.name << ": " << check->reason();
  }
}

TEST(FlashInferNames, KdaStateTypes) {
  struct {
    const char* name;
    bool bf16, fp32;
  } const kTable[] = {{"auto", true, false},    {"cake", true, false}, {"small-bh", true, false},
                      {"cute-dsl", true, true}, {"cudnn", true, true}, {"cute-dsl-persistent", false, true},
                      {"tirx", false, true},    {"ptx", false, true}};
  for (const auto& t : kTable) {
    const std::string bf16 = kKdaLine + "state=bf16", fp32 = kKdaLine + "state=fp32", fp16 = kKdaLine + "state=fp16";
    Expect({t.name, bf16.c_str(), "sm_103", {}, t.bf16 ? nullptr : "state must be fp32, and it is bf16"});
    Expect({t.name, fp32.c_str(), "sm_103", {}, t.fp32 ? nullptr : "state must be bf16, and it is fp32"});
    Expect({t.name, fp16.c_str(), "sm_103", {}, "and it is fp16"});
  }
  EXPECT_EQ(FlashInferNames(Op::kKdaPrefill).size(), std::size(kTable));
}

TEST(FlashInferNames, PtxNeedsSm103aAnd64Or96Heads) {
  const std::string heads64 = "kda_prefill lens=64 hk=64 gate=bounded:-5 norm=none";
  const std::string heads32 = "kda_prefill lens=64 hk=32 gate=bounded:-5 norm=none";
  Expect({"ptx", heads64.c_str(), "sm_103", {}, nullptr});
  Expect({"ptx", kKdaLine.c_str(), "sm_103", {}, nullptr});
  Expect({"ptx", heads32.c_str(), "sm_103", {}, "heads must be 64 or 96, and they are 32"});
  Expect({"ptx", heads64.c_str(), "sm_100", {}, "it needs sm_103a, and the device is sm_100"});
  Expect({"ptx", heads64.c_str(), "sm_90", {}, "it needs sm_103a, and the device is sm_90"});
}

TEST(FlashInferNames, CaptureNeedsAnExplicitWarmedWorkspace) {
  for (const char* name : {"cute-dsl-persistent", "tirx", "ptx"}) {
    Expect({name, kKdaLine.c_str(), "sm_103", {true, false, false}, "explicit, warmed workspace"});
    Expect({name, kKdaLine.c_str(), "sm_103", {true, true, false}, "this one is cold"});
    Expect({name, kKdaLine.c_str(), "sm_103", {true, true, true}, nullptr});
    Expect({name, kKdaLine.c_str(), "sm_103", {false, false, false}, nullptr});
  }
  Expect({"cudnn", kKdaLine.c_str(), "sm_103", {true, false, false}, nullptr});
}

TEST(FlashInferNames, CudnnNormalisesWithAnAddedEpsilonAndTakesBoundedGates) {
  Expect({"cudnn", "kda_prefill lens=64 hk=8 gate=bounded:-5 norm=l2_add:1e-6", "sm_100", {}, nullptr});
  Expect({"cudnn", "kda_prefill lens=64 hk=8 gate=bounded:-0.5 norm=l2_add:0.001", "sm_100", {}, nullptr});
  Expect({"cudnn", "kda_prefill lens=64 hk=8 gate=bounded:-5 norm=l2_max:1e-12", "sm_100", {}, "added epsilon"});
  Expect({"cudnn", "kda_prefill lens=64 hk=8 gate=softplus norm=none", "sm_100", {}, "gate must be bounded"});
}

TEST(FlashInferNames, NormsOfTheOthers) {
  const char* additive = "kda_prefill lens=64 hk=8 gate=bounded:-5 norm=l2_add:1e-6 state=bf16";
  Expect({"cake", additive, "sm_100", {}, nullptr});
  Expect({"cute-dsl", additive, "sm_100", {}, "its own normalisation is l2_max"});
  Expect({"auto", additive, "sm_100", {}, "norm=none"});
  Expect({"small-bh", additive, "sm_100", {}, "norm=none"});
}

TEST(FlashInferNames, SharedContract) {
  Expect({"cake", "kda_prefill lens=64 hk=8 gate=bounded:-5 norm=none state=bf16", "sm_90", {}, "device is sm_90"});
  Expect({"cake", "kda_prefill lens=64 hk=8 k=64 gate=bounded:-5 norm=none state=bf16", "sm_100", {}, "64 and 128"});
  Expect({"cake", "kda_prefill lens=64 hk=4 hv=8 gate=bounded:-5 norm=none state=bf16", "sm_100", {}, "4 and 8"});
  Expect({"cake", "kda_prefill lens=64 hk=8 io=fp16 gate=bounded:-5 norm=none state=bf16", "sm_100", {}, "is fp16"});
  Expect({"cake",
          "kda_prefill lens=64 hk=8 gate=bounded:-5 norm=none state=bf16 checkpoint_every=64",
          "sm_100",
          {},
          "checkpoint_every=64"});
  Expect({"cake", "kda_decode lens=1 hk=8 gate=bounded:-5 norm=none state=bf16", "sm_100", {}, "prefill kernels only"});
  Expect({"small-bh", "kda_prefill lens=64 hk=8 gate=softplus norm=none state=bf16", "sm_100", {}, nullptr});
  Expect({"small-bh", "kda_prefill lens=64 hk=8 gate=log norm=none state=bf16", "sm_100", {}, "gate=log"});
  Expect({"cute-dsl-persistent", "kda_prefill lens=64 hk=12 gate=bounded:-5 norm=none", "sm_100", {}, "multiple of 8"});
}

TEST(FlashInferNames, Gdn) {
  EXPECT_EQ(FlashInferNames(Op::kGdnPrefill).size(), 2u);
  const char* line = "gdn_prefill lens=64 hk=16 hv=32 norm=none";
  Expect({"auto", line, "sm_90", {}, nullptr});
  Expect({"auto", line, "sm_100", {}, nullptr});
  Expect({"auto", line, "cpu", {}, "device is cpu"});
  Expect({"auto", "gdn_prefill lens=64 hk=16 hv=32 norm=none state=bf16", "sm_90", {}, "state must be fp32"});
  Expect({"cudnn", line, "sm_100", {}, nullptr});
  Expect({"cudnn", line, "sm_90", {}, "sm_100 or sm_103"});
  Expect({"cudnn", "gdn_prefill lens=64 hk=16 hv=32 norm=none io=fp32", "sm_100", {}, "bf16 or fp16"});
}

TEST(FlashInferNames, UnknownNamesAreErrors) {
  const auto kda = ParseProblemLine(kKdaLine);
  const auto r = CheckFlashInfer("triton", kda->problem, *AssumedDevice("sm_100"), {});
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kInvalidArgument);
  EXPECT_NE(r.status().message().find("cute-dsl-persistent"), std::string::npos);
  const auto gdn = ParseProblemLine("gdn_prefill lens=64 hk=16 hv=32");
  EXPECT_FALSE(CheckFlashInfer("cake", gdn->problem, *AssumedDevice("sm_100"), {}).ok());
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
