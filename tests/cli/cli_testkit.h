// SPDX-License-Identifier: Apache-2.0
// Runs the program under test as a user would: a command line in a shell, with what it wrote and its exit status.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace fluvial::tools {

struct Ran {
  int status = -1;  ///< as the shell reports it
  std::string out;
  std::string err;
};

inline std::string ReadText(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void WriteText(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A folder of its own for every test, removed afterwards.
class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "fluvial_cli_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path& folder() const { return folder_; }
  static std::filesystem::path Source(std::string_view path) {
    return std::filesystem::path(FLUVIAL_SOURCE_DIR) / path;
  }

  /// `environment` is put before the program: "FLUVIAL_OP=gemm ".
  Ran Run(const std::string& arguments, const std::string& environment = "") {
    const std::string out = folder_ / "stdout", err = folder_ / "stderr";
    const std::string line =
        environment + " " FLUVIAL_PROGRAM " " + arguments + " >" + out + " 2>" + err + " </dev/null";
    const int raw = std::system(line.c_str());
    Ran r;
    r.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
    r.out = ReadText(out);
    r.err = ReadText(err);
    return r;
  }

  /// A wrong call: exactly one line "fluvial: ..." that holds `says`, nothing on stdout, this status.
  void ExpectError(const std::string& arguments, int status, std::string_view says, const std::string& env = "") {
    const Ran r = Run(arguments, env);
    EXPECT_EQ(r.status, status) << arguments << "\n" << r.err;
    EXPECT_EQ(r.out, "") << arguments;
    EXPECT_EQ(r.err.rfind("fluvial: ", 0), 0u) << arguments << "\n" << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << arguments << "\n" << r.err;
    EXPECT_NE(r.err.find(says), std::string::npos) << arguments << " must say '" << says << "'\n" << r.err;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace fluvial::tools
