// SPDX-License-Identifier: Apache-2.0
// Any bytes as a text: encoding succeeds, decoding gives the text back where the tokenizer does not normalise, and
// streaming equals decoding. Then the bytes as token ids.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

using fluvial::text::DecodeOptions;
using fluvial::text::StreamDecoder;
using fluvial::text::TokenId;
using fluvial::text::Tokenizer;

namespace {

void CheckStream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (const bool skip : {false, true}) {
    const DecodeOptions options{.skip_special_tokens = skip};
    StreamDecoder stream(tokenizer, options);
    std::string out;
    for (const TokenId id : ids) {
      const std::string more = stream.Push(id);
      FLUVIAL_CHECK(fluvial::text::IsValidUtf8(more));
      out += more;
    }
    FLUVIAL_CHECK(out + stream.Finish() == tokenizer.Decode(ids, options));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Tokenizer>* tokenizers = [] {
    auto* list = new std::vector<Tokenizer>;
    for (const char* name : {"glm", "kimi", "qwen3", "qwen35", "odd"}) {
      auto tokenizer = Tokenizer::Load(std::string(FLUVIAL_SOURCE_DIR) + "/tests/golden/tokenizer/" + name);
      FLUVIAL_CHECK(tokenizer.ok());
      list->push_back(std::move(tokenizer).value());
    }
    return list;
  }();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string repaired = fluvial::text::ReplaceInvalidUtf8(text);
  for (size_t i = 0; i < tokenizers->size(); ++i) {
    const Tokenizer& tokenizer = (*tokenizers)[i];
    const auto ids = tokenizer.Encode(text);
    FLUVIAL_CHECK(ids.ok());
    FLUVIAL_CHECK(*ids == *tokenizer.Encode(repaired));
    if (i < 2) FLUVIAL_CHECK(tokenizer.Decode(*ids, {.skip_special_tokens = false}) == repaired);
    CheckStream(tokenizer, *ids);
    std::vector<TokenId> any;
    for (size_t k = 0; k + 1 < size; k += 2) any.push_back((data[k] << 8 | data[k + 1]) % 2048 - 8);
    CheckStream(tokenizer, any);
  }
  return 0;
}
