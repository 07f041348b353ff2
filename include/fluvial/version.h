// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fluvial {

inline constexpr int kVersionMajor = 0;
inline constexpr int kVersionMinor = 1;
inline constexpr int kVersionPatch = 0;

/// "0.1.0".
std::string Version();

}  // namespace fluvial
