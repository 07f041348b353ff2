// SPDX-License-Identifier: Apache-2.0
// Every operator and its backends as plain data, for listings. The lists themselves live in the op rooms.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "fluvial/status.h"

namespace fluvial::tools {

/// What one device says about one backend.
struct DeviceVerdict {
  std::string device;  ///< "cpu", "sm_90"
  bool usable = false;
  std::string reason;  ///< of the refusal
};

struct BackendEntry {
  std::string name;
  std::string description;
  std::vector<DeviceVerdict> devices;
  bool usable = false;  ///< on any of the devices
  std::string reason;   ///< the refusals joined; empty when usable
};

struct OpEntry {
  std::string op;
  std::string option;    ///< "--gdn-prefill-backend", or empty when the operator has no option of its own
  std::string contract;  ///< header with formula, shapes and rules
  std::string problem;   ///< the line that the backends were asked about
  std::vector<BackendEntry> backends;
};

/// Names of all operators, in listing order.
std::vector<std::string> OpNames();

/// Backends of `op` asked about `problem_line` (empty: a problem typical of its models) on each device.
/// kInvalidArgument for an unknown operator or a line that is not one of its problems.
Result<OpEntry> DescribeOp(std::string_view op, std::string_view problem_line, std::span<const DeviceInfo> devices);

}  // namespace fluvial::tools
