// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "base/check.h"

namespace fluvial {
namespace {

constexpr int kSilent = 100;  // above every level

struct LogState {
  std::mutex mutex;
  LogSink sink;
  std::atomic<int> minimum{kSilent};
};

LogState& State() {
  static LogState* state = new LogState;  // never destroyed: worker threads may log during exit
  return *state;
}

}  // namespace

std::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

void SetLogSink(LogSink sink, LogLevel minimum) {
  LogState& s = State();
  std::lock_guard lock(s.mutex);
  s.minimum = sink ? static_cast<int>(minimum) : kSilent;
  s.sink = std::move(sink);
}

bool LogEnabled(LogLevel level) { return static_cast<int>(level) >= State().minimum.load(std::memory_order_relaxed); }

void Log(LogLevel level, std::string_view line) {
  if (!LogEnabled(level)) return;
  LogState& s = State();
  std::lock_guard lock(s.mutex);
  if (s.sink) s.sink(level, line);
}

void CheckFailed(const char* file, int line, const char* condition, const char* message) {
  // Straight to stderr: the process is about to end and a sink may be the broken part.
  std::fprintf(stderr, "fluvial: bug: %s:%d: check failed: %s %s\n", file, line, condition, message);
  std::abort();
}

}  // namespace fluvial
