// SPDX-License-Identifier: Apache-2.0
// Every backend that accepts a case, against the reference, on the CPU and on a CUDA device when there is one.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ops/delta_rule/test_kit.h"

namespace fluvial::ops::delta_rule {
namespace {

std::vector<std::unique_ptr<Stream>> Streams() {
  std::vector<std::unique_ptr<Stream>> out;
  out.push_back(MakeCpuStream(2));
  if (CudaDeviceCount() > 0) {
    auto cuda = MakeCudaStream(0);
    if (cuda.ok()) out.push_back(std::move(cuda).value());
  }
  return out;
}

std::vector<std::string> Lines() {
  std::vector<std::string> out;
  const std::string tails = "lens=1,15,16,17,31,32,33,0,37,63,64,65,97,111,0,255";
  for (const std::string op : {"gdn_prefill ", "kda_prefill "}) {
    const std::string bounded = " gate=bounded:-5";
    out.push_back(op + tails + " hk=2 fill=random slots=mixed pad=8 extra=3");
    out.push_back(op + tails + " hk=2 hv=4 fill=random gate=log beta=probability norm=none checkpoint_every=64");
    out.push_back(op + tails + " hk=1" + bounded + " fill=random state=bf16 slots=shuffled");
    for (const std::string form : {" gate=log", " gate=softplus", " gate=bounded:-5"}) {
      for (const std::string beta : {" beta=probability", " beta=logit", " beta=two_sigmoid"}) {
        out.push_back(op + "lens=0,1,63,64,65,130,0 hk=1 hv=2 norm=none scale=1 fill=exact slots=mixed" + form + beta);
      }
      for (const std::string fill :
           {"random", "equal", "collinear", "positive", "strong", "mixed", "no_decay", "tiny", "large"}) {
        out.push_back(op + "lens=200,33 hk=1 hv=2 io=fp32 gate_dtype=fp32 beta_dtype=fp32 fill=" + fill + form);
        out.push_back(op + "lens=200,33 hk=1 fill=" + fill + form);
      }
    }
    out.push_back(op + "lens=70,65,3 hk=2 k=60 v=96 alignment=8 norm=l2_max:1e-12 fill=random pad=4");
    out.push_back(op + "lens=70,65,3 hk=1 k=7 v=5 alignment=2 fill=random pad=1 extra=1");
    out.push_back(op + "lens=40,130 hk=1 io=fp16 state=fp16 fill=random");
    out.push_back(op + "lens=40,21,130 hk=1 fill=random nan=1");
    // Neighbouring heads of one task: within a key head, and across two.
    out.push_back(op + "lens=5x40,9,70 hk=2 hv=2 fill=random slots=mixed pad=8");
    out.push_back(op + "lens=5x40,9,70 hk=2 hv=4 fill=random slots=mixed extra=2 checkpoint_every=64");
    out.push_back(op + "lens=6x40 hk=1 hv=3 fill=random");
    out.push_back(op + "lens= hk=1 fill=random");
    out.push_back(op + "lens=0,0 hk=1 fill=random slots=mixed");
    out.push_back(op + "lens=2000 hk=1 v=32 fill=collinear gate=log io=fp32 gate_dtype=fp32");
  }
  for (const std::string op : {"gdn_decode ", "kda_decode "}) {
    out.push_back(op + "lens=9x1,0,1 hk=2 hv=4 fill=random slots=mixed pad=8 extra=2");
    out.push_back(op + "lens=5x1 hk=2 fill=random state=bf16 slots=shuffled gate=bounded:-5");
    out.push_back(op + "lens=1,4,8,0,3 hk=1 hv=2 fill=random token_states=1");
    out.push_back(op + "lens=1,4,8,0,3 hk=1 fill=random slots=apart norm=none");
    out.push_back(op + "lens=5x1,2 hk=1 io=fp16 state=fp16 fill=random beta=two_sigmoid");
    out.push_back(op + "lens=3x1 hk=2 k=60 v=96 alignment=8 fill=random");
    out.push_back(op + "lens=3x1,3 hk=1 k=7 v=5 alignment=2 fill=random gate=log");
    out.push_back(op + "lens=4x1,3 hk=1 hv=2 fill=exact norm=none scale=1 slots=mixed");
    out.push_back(op + "lens=4x1,3 hk=1 fill=exact norm=l2_max:1e-12 scale=2 gate=log token_states=1");
    for (const std::string fill : {"strong", "tiny", "large", "equal"}) {
      out.push_back(op + "lens=4x1,3 hk=1 io=fp32 gate_dtype=fp32 beta_dtype=fp32 fill=" + fill);
    }
  }
  return out;
}

TEST(DeltaRuleBackends, AgreeWithTheReference) {
  const auto streams = Streams();
  int runs = 0;
  for (const std::string& line : Lines()) {
    const auto spec = ParseCase(line);
    ASSERT_TRUE(spec.ok()) << line << ": " << spec.status().message();
    EXPECT_EQ(FormatCase(*spec), FormatCase(*ParseCase(FormatCase(*spec))));
    const auto prepared = PreparedCase::Make(*spec, streams[0]->pool());
    ASSERT_TRUE(prepared.ok()) << line << ": " << prepared.status().message();
    for (const auto& stream : streams) {
      for (const DeltaBackend& backend : Backends(spec->line.problem.op)) {
        if (!backend.check(spec->line.problem, stream->device()).ok()) continue;
        const auto verdict = prepared->Check(*stream, backend, PrecisionOf(backend));
        ASSERT_TRUE(verdict.ok()) << backend.name << ": " << FormatCase(*spec) << ": " << verdict.status().message();
        EXPECT_TRUE(verdict->passed) << backend.name << " on " << stream->device().Arch() << ": " << FormatCase(*spec)
                                     << "\n  " << verdict->why;
        ++runs;
      }
    }
  }
  std::printf("%d runs\n", runs);
}

TEST(DeltaRuleCases, BadWordsAreErrors) {
  for (const char* line : {"kda_prefill lens=4 hk=1 fill=zeros", "kda_prefill lens=4 hk=1 slots=all",
                           "kda_prefill lens=4 hk=1 pad=-1", "kda_prefill lens=4 hk=1 nan=1",
                           "kda_prefill lens=4 hk=1 fill=exact", "kda_prefill lens=4 hk=1 fill=exact scale=1",
                           "kda_prefill lens=4 hk=1 split=1 state=bf16", "kda_decode lens=4 hk=1 split=1",
                           "gdn_decode lens=4 hk=1 refill=1 token_states=1", "kda_prefill lens=4 hk=1 what=1"}) {
    EXPECT_FALSE(ParseCase(line).ok()) << line;
  }
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
