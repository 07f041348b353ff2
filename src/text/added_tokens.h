// SPDX-License-Identifier: Apache-2.0
// Added tokens: strings that are cut out of the text whole, before or after normalisation, leftmost and longest
// first (tokenizer.json: added_tokens; the rules are those of Hugging Face's added_vocabulary).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fluvial::text {

struct AddedToken {
  std::string content;
  uint32_t id = 0;
  bool special = false;      ///< dropped by skip_special_tokens; plain text when special tokens are not parsed
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< takes the white space behind it along
  bool normalized = true;    ///< searched for in normalised text
};

/// Finds added tokens in text. Immutable after Build.
class AddedTokenMatcher {
 public:
  /// A part of the text: an added token, or (token null) what lies between.
  struct Part {
    size_t begin;
    size_t end;
    const AddedToken* token;
  };

  /// Tokens must not be empty. `patterns[i]` is the text to search for `tokens[i]`, which must outlive this.
  void Build(const std::vector<const AddedToken*>& tokens, const std::vector<std::string>& patterns);

  bool empty() const { return nodes_.empty(); }

  /// The parts of `text`, in order, none empty. `parse_special` false: special tokens are not searched for.
  void Split(std::string_view text, bool parse_special, std::vector<Part>* parts) const;

 private:
  struct Node {
    uint32_t first_edge = 0;
    uint32_t edges = 0;
    const AddedToken* token = nullptr;
  };
  struct Edge {
    unsigned char byte;
    uint32_t node;
  };

  const AddedToken* Longest(std::string_view text, size_t begin, size_t* end) const;

  std::vector<Node> nodes_;  // 0 is the root
  std::vector<Edge> edges_;
  std::array<bool, 256> first_{};
};

}  // namespace fluvial::text
