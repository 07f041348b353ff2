// SPDX-License-Identifier: Apache-2.0
#include "text/stream_decoder.h"

#include "text/utf8.h"

namespace fluvial::text {

std::string StreamDecoder::Push(TokenId id) {
  if (options_.skip_special_tokens && tokenizer_.IsSpecial(id)) return {};
  held_ += tokenizer_.TokenBytes(id);
  std::string out;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const size_t good = ValidUtf8Prefix(rest);
    out += rest.substr(0, good);
    rest.remove_prefix(good);
    if (rest.empty()) break;
    const Utf8Head head = DecodeHead(rest);
    if (head.kind == Utf8Head::Kind::kIncomplete) break;
    out += kReplacement;
    rest.remove_prefix(head.length);
  }
  held_.erase(0, held_.size() - rest.size());
  return out;
}

std::string StreamDecoder::Finish() {
  // What is held is a proper prefix of one character, so one maximal subpart.
  std::string out(held_.empty() ? std::string_view() : kReplacement);
  held_.clear();
  return out;
}

}  // namespace fluvial::text
