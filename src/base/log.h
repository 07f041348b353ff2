// SPDX-License-Identifier: Apache-2.0
// The library's only voice: one line to a sink that the program installs. Without a sink nothing is
// printed - tools install one that writes to stderr.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace fluvial {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

std::string_view LogLevelName(LogLevel level);

/// Called with one line without newline. May be called from any thread; calls are serialised.
using LogSink = std::function<void(LogLevel, std::string_view line)>;

/// Installs `sink` for messages at or above `minimum`; an empty sink silences the library.
void SetLogSink(LogSink sink, LogLevel minimum = LogLevel::kInfo);

/// True when a message at this level would reach the sink: ask before building an expensive line.
bool LogEnabled(LogLevel level);

void Log(LogLevel level, std::string_view line);
inline void LogInfo(std::string_view line) { Log(LogLevel::kInfo, line); }
inline void LogWarning(std::string_view line) { Log(LogLevel::kWarning, line); }

}  // namespace fluvial
