// SPDX-License-Identifier: Apache-2.0
// Providers and FlashInfer's names from the command line, and the comparison of saved benchmark runs.
#include <nlohmann/json.hpp>

#include "cli_testkit.h"

namespace fluvial::tools {
namespace {

using Json = nlohmann::json;

const std::string kToy = FLUVIAL_PROVIDER_TOY;
const std::string kPlain =
    " --problem 'gdn_prefill hk=1 hv=2 k=16 v=16 io=fp32 gate=log beta=probability norm=none lens=9,0,3";

TEST_F(CliTest, AProviderIsListedAndVerified) {
  for (const std::string& how : {"--provider " + kToy, std::string()}) {
    const std::string environment = how.empty() ? "FLUVIAL_PROVIDER=" + kToy : "";
    const Ran r = Run("backends --op gdn_prefill --json " + how, environment);
    ASSERT_EQ(r.status, 0) << r.err;
    const Json list = Json::parse(r.out)["operators"][0]["backends"];
    EXPECT_EQ(list.back()["name"], "reference");
    const Json& toy = list[list.size() - 2];
    EXPECT_EQ(toy["name"], "toy");
    EXPECT_FALSE(toy["usable"]);
    EXPECT_NE(toy["reason"].get<std::string>().find("needs io, gate and beta in fp32"), std::string::npos);
  }
  Ran r = Run("verify --json --device cpu --backend toy --provider " + kToy + kPlain + " fill=random'");
  ASSERT_EQ(r.status, 0) << r.err << r.out;
  EXPECT_EQ(Json::parse(r.out)["runs"], 1);
  r = Run("bench op --seconds 0.001 --processes 2 --backend toy --provider " + kToy + kPlain + "'");
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  EXPECT_NE(r.out.find("toy "), std::string::npos) << r.out;
  r = Run("explain --gdn-prefill-backend toy --provider " + kToy + kPlain + "'");
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  EXPECT_NE(r.out.find("* toy: "), std::string::npos) << r.out;
  EXPECT_EQ(Run("backends --op gdn_prefill").out.find("toy"), std::string::npos) << "nothing is loaded unasked";
}

TEST_F(CliTest, WhatIsWrongWithAProviderIsOneSentence) {
  ExpectError("backends --provider /no/such.so", 3, "--provider: provider '/no/such.so' cannot be loaded: ");
  ExpectError("verify --provider " FLUVIAL_PROVIDER_NO_ENTRY, 3, "has no function fluvial_provider_entry");
  ExpectError("bench op --provider " FLUVIAL_PROVIDER_OLD, 3, "speaks provider interface 7");
  ExpectError("verify --backend toy --provider " + kToy + " --op gdn_prefill --problem 'gdn_prefill hk=1 lens=1'", 4,
              "needs io, gate and beta in fp32");
  ExpectError("explain --gdn-prefill-backend toy" + kPlain + "'", 2, "there is no backend 'toy'");
  const std::string model = Source("models/demo-random-gdn");
  ExpectError("run " + model + " --prompt x --provider " + kToy + " --gdn-prefill-backend toy", 4,
              "backend 'toy' cannot run this: needs io, gate and beta in fp32");
}

TEST_F(CliTest, FlashInferNamesNeedFlashInfer) {
  const std::string model = Source("models/demo-random-gdn");
  for (const std::string& command : {"run " + model + " --prompt x", "explain " + model}) {
    ExpectError(command + " --flashinfer-kda-backend cake", 2,
                "add --kda-prefill-backend flashinfer, or leave --flashinfer-kda-backend out");
    ExpectError(command + " --flashinfer-gdn-backend cudnn --gdn-prefill-backend cpu", 2,
                "add --gdn-prefill-backend flashinfer");
    ExpectError(command + " --flashinfer-gdn-backend cake --gdn-prefill-backend flashinfer", 2,
                "FlashInfer has no backend 'cake'; names: auto, cudnn");
  }
  ExpectError("run " + model + " --prompt x --gdn-prefill-backend flashinfer", 2,
              "the FlashInfer provider is not loaded: give its library with --provider PATH");
  ExpectError("run " + model + " --prompt x", 2, "names a backend inside FlashInfer",
              "FLUVIAL_FLASHINFER_GDN_BACKEND=cudnn");
}

TEST_F(CliTest, ExplainAsksFlashInferNamesByContract) {
  const std::string ask =
      "explain --assume-device sm_103 --json --kda-prefill-backend flashinfer "
      "--problem 'kda_prefill hk=96 gate=bounded:-5 norm=none lens=8192 state=";
  // Omitted means auto, whose state is bf16.
  Ran r = Run(ask + "fp32'");
  EXPECT_EQ(r.status, 4) << r.out;
  EXPECT_NE(r.err.find("flashinfer (auto) cannot run this: state must be bf16, and it is fp32"), std::string::npos)
      << r.err;
  const Json names = Json::parse(r.out)["operators"][1]["backends"];
  ASSERT_EQ(names.size(), 8u);
  for (const Json& n : names) {
    const std::string name = n["name"];
    const bool fp32 =
        name == "cute-dsl" || name == "cudnn" || name == "cute-dsl-persistent" || name == "tirx" || name == "ptx";
    EXPECT_EQ(n["usable"].get<bool>(), fp32) << n;
  }
  EXPECT_EQ(Run(ask + "bf16'").status, 0);
  EXPECT_EQ(Run(ask + "fp32' --flashinfer-kda-backend ptx").status, 0);
  r = Run(ask + "fp32' --flashinfer-kda-backend ptx --graph-capture");
  EXPECT_EQ(r.status, 4);
  EXPECT_NE(r.err.find("needs an explicit, warmed workspace"), std::string::npos) << r.err;
  EXPECT_EQ(Run(ask + "fp32' --flashinfer-kda-backend ptx --graph-capture --flashinfer-workspace warmed").status, 0);
  ExpectError("explain", 2, "give a model, or one --problem");
}

TEST_F(CliTest, SavedRunsAreComparedInPairs) {
  const auto row = [](const char* backend, const char* us) {
    return std::string(R"({"problem": "gdn_decode lens=1", "device": "cpu", "backend": ")") + backend +
           R"(", "all_us": )" + us + "}";
  };
  WriteText(folder() / "old.json", R"({"results": [)" + row("cpu", "[10, 20, 40]") + "," + row("gone", "[1]") + "]}");
  WriteText(folder() / "new.json", R"({"results": [)" + row("cpu", "[5, 20, 20]") + "," + row("fresh", "[1]") + "]}");
  const std::string both = (folder() / "old.json").string() + "," + (folder() / "new.json").string();
  const Ran r = Run("bench op --compare " + both);
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("20.0        20.0     0.500    0.500-   1.000      3  cpu  cpu  gdn_decode lens=1"),
            std::string::npos)
      << r.out;
  EXPECT_NE(r.out.find("old.json: gone"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("new.json: fresh"), std::string::npos) << r.out;
  WriteText(folder() / "bad.json", R"({"results": [1]})");
  ExpectError("bench op --compare " + both + ",x", 2, "takes two files");
  ExpectError("bench op --compare " + (folder() / "bad.json").string() + ",x", 3, "is not a file that");
  ExpectError("bench op --compare /none.json,x", 3, "cannot be read");
}

}  // namespace
}  // namespace fluvial::tools
