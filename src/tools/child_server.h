// SPDX-License-Identifier: Apache-2.0
// ChildServer: `fluvial serve` as a fresh process, for measurements that must not share a process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fluvial/status.h"

namespace fluvial::tools {

class ChildServer {
 public:
  /// Starts this program with `arguments` (without its name) and --port 0.
  static Result<std::unique_ptr<ChildServer>> Start(const std::vector<std::string>& arguments);
  ~ChildServer();  ///< SIGTERM, and SIGKILL after ten seconds
  ChildServer(const ChildServer&) = delete;
  ChildServer& operator=(const ChildServer&) = delete;

  /// Waits until it says where it serves. kRefused when it ended with status 4, kFailed when it ended otherwise (with
  /// its own last words) or took longer.
  Result<std::string> WaitUrl(std::chrono::milliseconds limit);

  /// Empty while the process runs; else how it ended: "exit status 1: fluvial: ...", "killed by signal 9".
  std::string Ended();

  /// What it wrote to stderr so far, its first 64 KiB.
  std::string Log() const;

 private:
  ChildServer() = default;
  std::string Read(int fd) const;

  pid_t pid_ = -1;
  int out_ = -1, log_ = -1;  // unlinked files: a child never waits for a reader
  bool reaped_ = false;
  int status_ = 0;
};

}  // namespace fluvial::tools
