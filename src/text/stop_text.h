// SPDX-License-Identifier: Apache-2.0
// StopText: finds stop strings in text that arrives in pieces, and lets out only what can no longer become part of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fluvial::text {

/// The stop string that is complete first ends the text, before its first byte; the longest of those that are
/// complete at the same byte. So the result does not depend on how the text is cut into pieces.
class StopText {
 public:
  /// Empty strings are ignored: they would stop before the first character.
  explicit StopText(std::vector<std::string> stops);

  /// Takes the next piece and gives the text that may be shown now. Nothing more comes once stopped().
  std::string Push(std::string_view piece);

  /// End of the text: what was held back because it might have become a stop string.
  std::string Finish();

  bool stopped() const { return stopped_; }
  /// The stop string that was found; empty unless stopped().
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string found_;
  bool stopped_ = false;
};

}  // namespace fluvial::text
