// SPDX-License-Identifier: Apache-2.0
// How the tools write sizes: bytes, counts of parameters.
#pragma once

#include <cstdint>
#include <string>

#include "models/footprint.h"

namespace fluvial::tools {

/// "512 B", "72.00 MiB".
std::string ByteText(uint64_t bytes);

/// "752.4 M", "79.67 B".
std::string CountText(int64_t count);

/// "79.67 B, 3.87 B of them per token; multi-token prediction 1.65 B, vision 0.45 B".
std::string ParameterText(const models::Footprint& footprint);

}  // namespace fluvial::tools
