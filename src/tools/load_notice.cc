// SPDX-License-Identifier: Apache-2.0
#include "tools/load_notice.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace fluvial::tools {

LoadNotice::LoadNotice(std::string name) : name_(std::move(name)) {
  if (isatty(STDERR_FILENO) != 0) thread_ = std::thread([this] { Draw(); });
}

LoadNotice::~LoadNotice() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void LoadNotice::Draw() {
  using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): literals have no other form
  constexpr int kWidth = 20;
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  if (wake_.wait_for(lock, 1s, [&] { return done_; })) return;
  // Loading maps files, so there is no honest fraction to show: the bar moves to and fro.
  for (int step = 0; !done_; ++step) {
    const int at = step % (2 * kWidth) < kWidth ? step % kWidth : kWidth - step % kWidth;
    std::string bar(kWidth + 3, ' ');
    bar.replace(static_cast<size_t>(at), 3, "===");
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::fprintf(stderr, "\rloading %s [%s] %.0f s", name_.c_str(), bar.c_str(), seconds);
    std::fflush(stderr);
    wake_.wait_for(lock, 100ms, [&] { return done_; });
  }
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

}  // namespace fluvial::tools
