// SPDX-License-Identifier: Apache-2.0
// Providers: loading, listing, naming, refusing, running, and every way in which loading fails.
#include "ops/delta_rule/provider.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "ops/delta_rule/verify.h"

namespace fluvial::ops::delta_rule {
namespace {

constexpr const char* kTaken =
    "lens=70,0,3,1 hk=2 hv=4 k=32 v=48 io=fp32 gate=log beta=probability norm=none slots=mixed pad=4 extra=1 "
    "fill=random";

ProviderSettings Toy(const std::string& key, const std::string& value) {
  // Settings of others are not its business.
  return {{"toy_provider", {{key, value}}}, {"someone_else", {{"key", "value"}}}};
}

size_t Count(Op op, std::string_view name) {
  size_t n = 0;
  for (const DeltaBackend& b : Backends(op)) n += b.name == name ? 1 : 0;
  return n;
}

void ExpectError(const Result<LoadedProvider>& r, Code code, std::string_view says) {
  ASSERT_FALSE(r.ok()) << says;
  EXPECT_EQ(r.status().code(), code) << r.status().message();
  EXPECT_NE(r.status().message().find(says), std::string::npos) << r.status().message();
  EXPECT_EQ(r.status().message().find('\n'), std::string::npos) << "one sentence: " << r.status().message();
}

// Errors first: none of them may leave anything in the lists.
TEST(DeltaRuleProvider, WhatCannotBeLoadedSaysWhyAndChangesNothing) {
  const auto before = Backends(Op::kGdnPrefill);
  ExpectError(LoadProvider(""), Code::kInvalidArgument, "is empty");
  ExpectError(LoadProvider("no/such/file.so"), Code::kUnusableModel, "provider 'no/such/file.so' cannot be loaded");
  ExpectError(LoadProvider("no_such_file.so"), Code::kUnusableModel, "No such file");
  const std::string text = ::testing::TempDir() + "/not_a_library.so";
  std::ofstream(text) << "not a library\n";
  ExpectError(LoadProvider(text), Code::kUnusableModel, "cannot be loaded");
  ExpectError(LoadProvider(FLUVIAL_PROVIDER_NO_ENTRY), Code::kUnusableModel, "has no function fluvial_provider_entry");
  ExpectError(LoadProvider(FLUVIAL_PROVIDER_OLD), Code::kUnusableModel,
              "speaks provider interface 7, and this program speaks 1: rebuild it");
  ExpectError(LoadProvider(FLUVIAL_PROVIDER_CLASH), Code::kInvalidArgument, "gdn_prefill already has a backend 'cpu'");
  ExpectError(LoadProvider(FLUVIAL_PROVIDER_BAD_NAME), Code::kUnusableModel, "backend 0 has no proper name");
  ExpectError(LoadProvider(FLUVIAL_PROVIDER_TOY, Toy("speed", "high")), Code::kInvalidArgument,
              "there is no setting 'speed'; settings: flavour");
  ExpectError(LoadProvider(FLUVIAL_PROVIDER_TOY, Toy("flavour", "sour")), Code::kInvalidArgument,
              "values: plain, failing");
  EXPECT_TRUE(LoadedProviders().empty());
  EXPECT_EQ(Backends(Op::kGdnPrefill).data(), before.data());
}

TEST(DeltaRuleProvider, IsListedNamedRefusedAndVerified) {
  const auto old_list = Backends(Op::kKdaDecode);
  const auto loaded = LoadProvider(FLUVIAL_PROVIDER_TOY, Toy("flavour", "plain"));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->name, "toy_provider");
  EXPECT_EQ(loaded->backends, std::vector<std::string>{"toy"});
  EXPECT_TRUE(ProviderLoaded("toy_provider"));
  EXPECT_FALSE(ProviderLoaded("flashinfer"));
  EXPECT_EQ(old_list.back().name, "reference") << "spans from before stay valid";
  // Once more: nothing is doubled.
  ASSERT_TRUE(LoadProvider(FLUVIAL_PROVIDER_TOY).ok());
  ExpectError(LoadProvider(FLUVIAL_PROVIDER_TOY, Toy("flavour", "failing")), Code::kInvalidArgument,
              "is loaded already");
  const DeviceInfo cpu = CpuDeviceInfo(2);
  for (const Op op : {Op::kGdnPrefill, Op::kGdnDecode, Op::kKdaPrefill, Op::kKdaDecode}) {
    EXPECT_EQ(Count(op, "toy"), 1u) << Name(op);
    EXPECT_EQ(Backends(op).back().name, "reference") << Name(op);
    const std::string lens = op == Op::kGdnDecode || op == Op::kKdaDecode ? " lens=1,0,3" : " lens=70,0,3,1";
    std::string line = std::string(Name(op)) + " " + kTaken;
    line.replace(line.find(" lens="), std::string(" lens=70,0,3,1").size(), lens);
    const auto taken = ParseCase(line);
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    const auto named = Choose(taken->line.problem, cpu, "toy");
    ASSERT_TRUE(named.ok()) << named.status().message();
    EXPECT_EQ(named->backend->name, "toy");
    EXPECT_NE(named->backend->description.find("(provider toy_provider 1.2)"), std::string_view::npos);
    EXPECT_NE(Choose(taken->line.problem, cpu, "auto")->backend->name, "toy") << "it says that it is slow";
    Problem other = taken->line.problem;
    other.norm = NormForm::kL2Add;
    const auto refused = Choose(other, cpu, "toy");
    ASSERT_FALSE(refused.ok()) << "an explicit name never falls back";
    EXPECT_EQ(refused.status().code(), Code::kRefused);
    EXPECT_NE(refused.status().message().find("needs norm=none, norm form, got 1"), std::string::npos)
        << refused.status().message();
    // Against the reference, with everything poisoned that it must not touch.
    std::vector<std::unique_ptr<Stream>> streams;
    streams.push_back(MakeCpuStream(2));
    VerifyOptions options;
    options.backend = "toy";
    options.line = line;
    const auto report = Verify(streams, options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->runs, 1);
    EXPECT_EQ(report->failed, 0) << (report->failures.empty() ? "" : report->failures.front());
  }
}

TEST(DeltaRuleProvider, AFailureWhileRunningIsAnErrorWithItsWords) {
  ASSERT_TRUE(LoadProvider(FLUVIAL_PROVIDER_FAILING, Toy("flavour", "failing")).ok());
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(MakeCpuStream(1));
  VerifyOptions options;
  options.backend = "failing_toy";
  options.line = std::string("gdn_prefill ") + kTaken;
  const auto report = Verify(streams, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->failed, 1);
  EXPECT_NE(report->failures.front().find("gdn_prefill failing_toy: it was told to fail"), std::string::npos)
      << report->failures.front();
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
