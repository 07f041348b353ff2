// SPDX-License-Identifier: Apache-2.0
// Options from three places, help, version, usage errors, and `fluvial backends`.
#include <nlohmann/json.hpp>

#include "cli_testkit.h"

namespace fluvial::tools {
namespace {

using Json = nlohmann::json;

TEST_F(CliTest, VersionAndHelp) {
  Ran r = Run("--version");
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.out, "fluvial 0.1.0\n");
  for (const char* arguments : {"--help", "-h", "backends --help"}) {
    r = Run(arguments);
    EXPECT_EQ(r.status, 0) << arguments;
    EXPECT_NE(r.out.find("Examples:"), std::string::npos) << arguments;
    EXPECT_EQ(r.err, "") << arguments;
  }
}

TEST_F(CliTest, WithoutACommandTheHelpGoesToStderr) {
  const Ran r = Run("");
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("Usage: fluvial"), std::string::npos);
}

TEST_F(CliTest, UsageErrors) {
  ExpectError("frobnicate x", 2, "there is no command 'frobnicate'; commands: ");
  ExpectError("backends --nonsense", 2, "--nonsense");
  ExpectError("backends --op", 2, "--op");
  ExpectError("backends extra", 2, "extra");
  ExpectError("--op gemm", 2, "--op");
  ExpectError("backends --op flash", 2, "there is no operator 'flash'; operators: gdn_prefill");
  ExpectError("backends --assume-device sm_9", 2, "unknown device 'sm_9'");
  ExpectError("backends --problem 'gdn_prefill hk=two lens=1'", 2, "hk=two: not a whole number");
  ExpectError("backends --problem ''  --op gemm --problem 'kda_decode hk=1 lens=1'", 2, "--op is gemm");
}

TEST_F(CliTest, BackendsListsEveryOperatorWithReferenceLast) {
  const Ran r = Run("backends --json");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");
  const Json root = Json::parse(r.out);
  ASSERT_GE(root["operators"].size(), 5u);
  for (const Json& op : root["operators"]) {
    ASSERT_FALSE(op["backends"].empty()) << op["op"];
    EXPECT_EQ(op["backends"].back()["name"], "reference") << op["op"];
    EXPECT_TRUE(op["backends"].back()["usable"]) << op["op"];
    EXPECT_TRUE(std::filesystem::exists(Source(op["contract"].get<std::string>()))) << op["contract"];
    for (const Json& b : op["backends"]) {
      EXPECT_FALSE(b["description"].get<std::string>().empty()) << b;
      EXPECT_EQ(b["usable"].get<bool>(), b["reason"].get<std::string>().empty()) << b;
    }
  }
}

TEST_F(CliTest, BackendsTextNamesTheReason) {
  const Ran r = Run("backends --op gdn_prefill --assume-device sm_90");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("gdn_prefill"), std::string::npos);
  EXPECT_EQ(r.out.find("kda_prefill"), std::string::npos);
  EXPECT_NE(r.out.find("H200 (assumed)"), std::string::npos);
}

TEST_F(CliTest, VerifyOneProblem) {
  const Ran r = Run("verify --device cpu --json --problem 'kda_prefill hk=2 hv=4 lens=65,0,17 gate=bounded:-5'");
  ASSERT_EQ(r.status, 0) << r.err << r.out;
  const Json root = Json::parse(r.out);
  EXPECT_EQ(root["cases"], 1);
  EXPECT_EQ(root["failed"], 0);
  bool cpu_ran = false;
  for (const Json& b : root["backends"]) cpu_ran = cpu_ran || (b["backend"] == "cpu" && b["passed"] == 1);
  EXPECT_TRUE(cpu_ran) << root;
  ExpectError("verify --cases some", 2, "use quick or full");
  ExpectError("verify --op softmax", 2, "softmax");
  ExpectError("verify --problem 'kda_prefill hk=2'", 2, "lens=");
}

TEST_F(CliTest, OptionsFromTheEnvironment) {
  Ran r = Run("backends --json", "FLUVIAL_OP=gemm");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(Json::parse(r.out)["operators"].size(), 1u);
  r = Run("backends --json --op kda_decode", "FLUVIAL_OP=gemm");
  EXPECT_EQ(Json::parse(r.out)["operators"][0]["op"], "kda_decode") << "the command line wins";
  r = Run("backends --op gemm", "FLUVIAL_JSON=true");
  EXPECT_EQ(Json::parse(r.out)["operators"].size(), 1u) << "flags too";
}

TEST_F(CliTest, OptionsFromAFile) {
  const std::string file = folder() / "fluvial.toml";
  WriteText(file, "# comment\nop = \"gemm\"\njson = true\n");
  Ran r = Run("backends --config " + file);
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(Json::parse(r.out)["operators"][0]["op"], "gemm");
  r = Run("backends --config=" + file + " --op kda_decode");
  EXPECT_EQ(Json::parse(r.out)["operators"][0]["op"], "kda_decode") << "the command line wins over the file";
  r = Run("backends --config " + file, "FLUVIAL_OP=gdn_decode");
  EXPECT_EQ(Json::parse(r.out)["operators"][0]["op"], "gdn_decode") << "the environment wins over the file";
  r = Run("backends", "FLUVIAL_CONFIG=" + file);
  EXPECT_EQ(Json::parse(r.out)["operators"][0]["op"], "gemm");
  WriteText(file, "[backends]\nop = \"gemm\"\njson = false\n");
  r = Run("backends --config " + file);
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out.rfind("devices:", 0), 0u) << "json = false leaves the flag off";
}

TEST_F(CliTest, BrokenConfigFiles) {
  const std::string file = folder() / "c.toml";
  ExpectError("backends --config /nowhere/c.toml", 3, "'/nowhere/c.toml' cannot be read");
  ExpectError("backends --config", 2, "--config needs the name of a file");
  WriteText(file, "opp = gemm\n");
  ExpectError("backends --config " + file, 2, "fluvial backends has no option 'opp'");
  WriteText(file, "[cook]\nop = gemm\n");
  ExpectError("backends --config " + file, 2, "there is no command for section [cook]");
  WriteText(file, "json = perhaps\n");
  ExpectError("backends --config " + file, 2, "json is true or false");
  WriteText(file, "op = flash\n");
  ExpectError("backends --config " + file, 2, "there is no operator 'flash'");
}

TEST_F(CliTest, AFullDiskIsNoticed) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full to write to";
  const std::string err = folder() / "e";
  const int raw = std::system((FLUVIAL_PROGRAM " backends >/dev/full 2>" + err).c_str());
  EXPECT_EQ(WEXITSTATUS(raw), 1);
  EXPECT_NE(ReadText(err).find("writing to the standard output failed"), std::string::npos);
}

}  // namespace
}  // namespace fluvial::tools
