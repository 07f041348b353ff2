// SPDX-License-Identifier: Apache-2.0
// What the loaders fill in and Tokenizer works with. Internal to this room.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace fluvial::text {

/// tokenizer_config.json, as far as it concerns tokens.
struct TokenizerConfig {
  std::vector<AddedToken> added_tokens;
  std::map<std::string, std::string> special_tokens;
  std::string remote_class;  ///< auto_map.AutoTokenizer: "module.Class" of the model's own Python code; often empty
};

/// Empty `text` gives an empty configuration.
Result<TokenizerConfig> ParseTokenizerConfig(std::string_view text);

struct Tokenizer::Data {
  /// Working memory of one Encode call.
  struct Scratch {
    Regex::Scratch regex;
    BpeScratch bpe;
    std::vector<AddedTokenMatcher::Part> parts, normalized_parts;
    std::string normalized;
  };

  /// Adds tokens whose ids and contents do not clash; a content given again replaces the earlier flags.
  Status AddTokens(std::vector<AddedToken> tokens);
  /// To be called last: builds the matchers and the table of special ids.
  Status Finish();

  std::unique_ptr<Scratch> TakeScratch() const;
  void GiveBack(std::unique_ptr<Scratch> scratch) const;

  Status EncodeText(std::string_view text, bool parse_special, Scratch* scratch, std::vector<TokenId>* out) const;
  /// Moonshot's wrapper cuts long texts before anything else (tokenization_kimi.py): at every 400,000 characters,
  /// and inside them at runs of more than 25,000 characters that are all white space or all not.
  Status EncodeTiktoken(std::string_view text, bool parse_special, Scratch* scratch, std::vector<TokenId>* out) const;

  Bpe bpe;
  std::vector<NormalForm> normalizers;
  PreTokenizer pre_tokenizer;
  std::vector<TokenId> prefix, suffix;
  TokenizerConfig config;
  bool tiktoken = false;  ///< Moonshot's rules: no normalisation, chunks, all added tokens are control tokens

  std::vector<std::unique_ptr<AddedToken>> added;  // stable addresses
  std::unordered_map<uint32_t, const AddedToken*> added_by_id;
  std::unordered_map<std::string_view, AddedToken*> added_by_content;
  std::unordered_map<uint32_t, std::string> added_bytes;  ///< what an added token decodes to
  AddedTokenMatcher raw_matcher, normalized_matcher;
  size_t vocab_size = 0;

  struct Decoded {
    std::string_view bytes;
    bool special = false;
  };
  std::vector<Decoded> decoded;  ///< by id

 private:
  Status EncodePlain(std::string_view text, Scratch* scratch, std::vector<TokenId>* out) const;

  mutable std::mutex scratch_mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> scratch_;
};

}  // namespace fluvial::text
