// SPDX-License-Identifier: Apache-2.0
#include "tools/progress.h"

#include <unistd.h>

#include <cstdio>

namespace fluvial::tools {

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)),
      terminal_(isatty(STDERR_FILENO) == 1),
      begin_(std::chrono::steady_clock::now()),
      last_(begin_) {}

ProgressLine::~ProgressLine() {
  if (drawn_ && terminal_) std::fputs("\n", stderr);
}

void ProgressLine::Update(int64_t done, int64_t failed, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  const auto gap = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000);
  if (now - last_ < gap && done != total) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const std::string failures = failed > 0 ? ", " + std::to_string(failed) + " failed" : "";
  std::fprintf(stderr, "%s%s: %lld of %lld%s, %.1f s%s", terminal_ ? "\r" : "", what_.c_str(),
               static_cast<long long>(done), static_cast<long long>(total), failures.c_str(), seconds,
               terminal_ ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace fluvial::tools
