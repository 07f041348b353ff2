// SPDX-License-Identifier: Apache-2.0
// Tokenizer: text to token ids and back, equal to Hugging Face tokenizers (tokenizer.json) and to tiktoken with
// Moonshot's wrapper (tiktoken.model). See src/text/README.md for what is supported and how it is checked.
//
// Input that is not valid UTF-8 is encoded as if every ill-formed maximal subpart were U+FFFD (text/utf8.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fluvial/status.h"

namespace fluvial::text {

using TokenId = int32_t;

struct EncodeOptions {
  /// Special tokens written in the text become their ids. False: they are plain text - for text of users who must
  /// not be able to forge a turn.
  bool parse_special = true;
  /// Add what the file's post-processor puts before and after a single text (nothing for Qwen, GLM and Kimi).
  bool add_special_tokens = true;
};

struct DecodeOptions {
  /// Leave out tokens marked special; `<think>` and `<tool_call>` are usually not.
  bool skip_special_tokens = true;
};

/// Immutable and safe to use from several threads. Cheap to copy: copies share everything.
class Tokenizer {
 public:
  /// Reads `directory`/tokenizer.json or else `directory`/tiktoken.model, and tokenizer_config.json where there is
  /// one. kUnusableModel with a sentence that names the field when a file is missing, damaged or asks for
  /// something that is not implemented; nothing is ignored that would change ids.
  static Result<Tokenizer> Load(const std::filesystem::path& directory);

  /// The same from texts in memory. An empty `config` stands for a missing tokenizer_config.json.
  static Result<Tokenizer> FromTokenizerJson(std::string_view json, std::string_view config);
  /// Lines `base64(bytes) rank`; ranks must be 0, 1, 2, ... The 256 ids behind them are special tokens, named by
  /// `added_tokens_decoder` of `config`, `<|reserved_token_ID|>` where that is silent.
  static Result<Tokenizer> FromTiktoken(std::string_view ranks, std::string_view config);

  /// Ids of `text`. Fails with kInvalidArgument above 1 GiB, with kResource when one word is too long to split.
  Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// Text of `ids`: their bytes joined, ill-formed parts replaced by U+FFFD. Ids without a token give nothing.
  std::string Decode(std::span<const TokenId> ids, const DecodeOptions& options = {}) const;

  /// Bytes that a token adds to the text; empty for an id without a token. Valid while any copy of this lives.
  std::string_view TokenBytes(TokenId id) const;

  /// Id of an added token's content or of a token as written in tokenizer.json.
  std::optional<TokenId> TokenToId(std::string_view token) const;

  bool IsSpecial(TokenId id) const;

  /// Largest id + 1. Models may have more embedding rows.
  size_t vocab_size() const;

  /// bos_token, eos_token, pad_token, ... of tokenizer_config.json: name -> content, for chat templates.
  const std::map<std::string, std::string>& special_tokens() const;

  struct Data;  ///< text/tokenizer_data.h

 private:
  explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

}  // namespace fluvial::text
