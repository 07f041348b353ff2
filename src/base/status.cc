// SPDX-License-Identifier: Apache-2.0
#include "fluvial/status.h"

#include "fluvial/version.h"

namespace fluvial {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kUnusableModel:
      return "unusable_model";
    case Code::kRefused:
      return "refused";
    case Code::kResource:
      return "resource";
    case Code::kCancelled:
      return "cancelled";
    case Code::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string Version() {
  return std::to_string(kVersionMajor) + "." + std::to_string(kVersionMinor) + "." + std::to_string(kVersionPatch);
}

}  // namespace fluvial
