// SPDX-License-Identifier: Apache-2.0
// FLUVIAL_CHECK: the stop for bugs (never for bad input, which is a Status). Kept in every build: its
// cost is one predictable branch per call site, outside inner loops.
#pragma once

namespace fluvial {

/// Reports through the log interface and ends the process. Only for broken invariants of our own code.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const char* message);

}  // namespace fluvial

#define FLUVIAL_CHECK(condition)                                  \
  do {                                                            \
    if (!(condition)) [[unlikely]]                                \
      ::fluvial::CheckFailed(__FILE__, __LINE__, #condition, ""); \
  } while (0)

#define FLUVIAL_CHECK_MSG(condition, message)                            \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::fluvial::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (0)
