// SPDX-License-Identifier: Apache-2.0
// The one-line text form of problems: an operator name followed by key=value fields separated by blanks, e.g.
//   kda_prefill lens=8192 hk=96 hv=96 k=128 v=128 io=bf16 state=fp32 gate=bounded:-5 seed=7
// A line from a log can be pasted into `fluvial bench op --problem` and `fluvial verify --problem`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fluvial/status.h"

namespace fluvial {

/// Shortest decimal text that reads back to the same float.
std::string FormatFloat(float x);

/// "1300,547,8x1024" -> lengths. Each item is a length, or COUNTxLENGTH. At most 2^24 lengths.
Result<std::vector<int64_t>> ParseLengths(std::string_view text);

/// Inverse of ParseLengths; runs of equal lengths are written COUNTxLENGTH.
std::string FormatLengths(const std::vector<int64_t>& lengths);

/// A parsed line. Each Take* removes its field, so that Finish() can name fields nobody knows.
class TextFields {
 public:
  static Result<TextFields> Parse(std::string_view line);

  const std::string& name() const { return name_; }
  bool Has(std::string_view key) const;

  /// Empty when absent.
  std::string Take(std::string_view key);
  Result<int64_t> TakeInt(std::string_view key, int64_t fallback);
  Result<float> TakeFloat(std::string_view key, float fallback);

  /// Error naming the first field that was not taken.
  Status Finish() const;

 private:
  std::string name_;
  std::vector<std::pair<std::string, std::string>> fields_;
};

}  // namespace fluvial
