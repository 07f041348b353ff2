// SPDX-License-Identifier: Apache-2.0
// Any bytes as tokenizer.json, tiktoken.model or tokenizer_config.json (the first byte says which): a tokenizer that
// can be used, or a Status.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "base/check.h"
#include "text/tokenizer.h"

using fluvial::text::Tokenizer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string* ranks = [] {
    std::ifstream file(std::string(FLUVIAL_SOURCE_DIR) + "/tests/golden/tokenizer/kimi/tiktoken.model");
    return new std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }();
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int kind = data[0] % 3;
  const auto tokenizer = kind == 0   ? Tokenizer::FromTokenizerJson(text, "")
                         : kind == 1 ? Tokenizer::FromTiktoken(text, "")
                                     : Tokenizer::FromTiktoken(*ranks, text);
  if (!tokenizer.ok()) {
    FLUVIAL_CHECK(!tokenizer.status().message().empty());
    return 0;
  }
  const auto ids = tokenizer->Encode("Hello 12  wor\xCC\x81ld<s>\n\xE4\xB8\xAD");
  if (ids.ok()) (void)tokenizer->Decode(*ids);
  return 0;
}
