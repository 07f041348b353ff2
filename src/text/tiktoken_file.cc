// SPDX-License-Identifier: Apache-2.0
// tiktoken.model: one token a line, base64(bytes), a blank, its rank.
#include <array>
#include <charconv>

#include "text/regex_dialect.h"
#include "text/tokenizer_data.h"

namespace fluvial::text {
namespace {

constexpr uint32_t kReserved = 256;  // special ids behind the ranks (tokenization_kimi.py: num_reserved_special_tokens)

constexpr std::array<int8_t, 256> kBase64 = [] {
  std::array<int8_t, 256> table{};
  for (auto& entry : table) entry = -1;
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int i = 0; i < 64; ++i) table[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
  return table;
}();

bool AppendBase64(std::string_view text, std::string* out) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  if (text.empty() || text.size() % 4 == 1) return false;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = kBase64[static_cast<unsigned char>(c)];
    if (value < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      *out += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return true;
}

Status ReadRanks(std::string_view text, Vocabulary* vocabulary) {
  vocabulary->Reserve(text.size() / 16, text.size() / 2);
  std::string bytes;
  uint32_t expected = 0;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = text.find('\n');
    std::string_view row = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty()) continue;
    const std::string where = "tiktoken.model: line " + std::to_string(line);
    const size_t blank = row.find(' ');
    uint32_t rank = 0;
    bytes.clear();
    if (blank == std::string_view::npos || !AppendBase64(row.substr(0, blank), &bytes)) {
      return Status::UnusableModel(where + " is not 'base64 rank'; fetch the file again");
    }
    const std::string_view number = row.substr(blank + 1);
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (error != std::errc() || stop != number.data() + number.size() || rank != expected) {
      return Status::UnusableModel(where + " has not the rank " + std::to_string(expected) +
                                   "; ranks must count up from 0, so fetch the file again");
    }
    const Status added = vocabulary->Add(rank, bytes, true);
    if (!added.ok()) return Status::UnusableModel(where + ": " + added.message() + "; fetch the file again");
    ++expected;
  }
  return Status::Ok();
}

}  // namespace

Result<Tokenizer> Tokenizer::FromTiktoken(std::string_view ranks, std::string_view config) {
  auto data = std::make_shared<Data>();
  data->tiktoken = true;
  FLUVIAL_ASSIGN_OR_RETURN(data->config, ParseTokenizerConfig(config));
  // The file holds neither pattern nor special ids: those are in the model's Python code. Other models with a
  // tiktoken.model split differently, so anything but Moonshot's module is refused.
  const std::string& remote = data->config.remote_class;
  if (!remote.empty() && remote.find("tokenization_kimi.") == std::string::npos) {
    return Status::UnusableModel("tokenizer_config.json: auto_map.AutoTokenizer is '" + remote +
                                 "'; a tiktoken.model is understood only with tokenization_kimi's rules");
  }
  FLUVIAL_RETURN_IF_ERROR(ReadRanks(ranks, &data->bpe.vocabulary()));
  data->bpe.Finish(/*by_rank=*/true, /*whole_piece_first=*/true);
  for (int byte = 0; byte < 256; ++byte) {
    if (data->bpe.ByteId(static_cast<uint8_t>(byte)) == Vocabulary::kNone) {
      return Status::UnusableModel("tiktoken.model has no token for the single byte " + std::to_string(byte) +
                                   "; fetch the file again");
    }
  }

  const auto base = static_cast<uint32_t>(data->bpe.vocabulary().id_end());
  std::vector<AddedToken> tokens(kReserved);
  for (uint32_t i = 0; i < kReserved; ++i) {
    tokens[i].id = base + i;
    tokens[i].content = "<|reserved_token_" + std::to_string(base + i) + "|>";
    tokens[i].special = true;
    tokens[i].normalized = false;
  }
  for (const AddedToken& named : data->config.added_tokens) {
    if (named.id < base || named.id >= base + kReserved) {
      return Status::UnusableModel("tokenizer_config.json: added_tokens_decoder['" + std::to_string(named.id) +
                                   "'] is outside the ids " + std::to_string(base) + " to " +
                                   std::to_string(base + kReserved - 1) + " that tiktoken.model leaves to it");
    }
    // tiktoken knows neither stripping nor whole words: only name and visibility are taken.
    tokens[named.id - base].content = named.content;
    tokens[named.id - base].special = named.special;
  }
  FLUVIAL_RETURN_IF_ERROR(data->AddTokens(std::move(tokens)));

  FLUVIAL_ASSIGN_OR_RETURN(const std::string pattern, ToPcre2(KimiPattern()));
  FLUVIAL_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  data->pre_tokenizer.Append({std::move(regex), true, false});
  FLUVIAL_RETURN_IF_ERROR(data->Finish());
  return Tokenizer(std::shared_ptr<const Data>(std::move(data)));
}

}  // namespace fluvial::text
