// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "text/byte_level.h"
#include "text/tokenizer_data.h"
#include "text/utf8.h"

namespace fluvial::text {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // positions inside the encoder are 32 bits wide
constexpr size_t kKeptScratches = 16;              // about 2 MiB each

Result<std::string> ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return Status::UnusableModel("cannot open " + path.string() + "; check that the file is readable");
  std::string content(static_cast<size_t>(std::max<std::streamoff>(file.tellg(), 0)), '\0');
  file.seekg(0);
  if (!file.read(content.data(), static_cast<std::streamsize>(content.size()))) {
    return Status::UnusableModel("cannot read " + path.string() + "; check the disk");
  }
  return content;
}

}  // namespace

Result<Tokenizer> Tokenizer::Load(const std::filesystem::path& directory) {
  std::error_code error;
  std::string config;
  if (std::filesystem::exists(directory / "tokenizer_config.json", error)) {
    FLUVIAL_ASSIGN_OR_RETURN(config, ReadFile(directory / "tokenizer_config.json"));
  }
  if (std::filesystem::exists(directory / "tokenizer.json", error)) {
    FLUVIAL_ASSIGN_OR_RETURN(const std::string json, ReadFile(directory / "tokenizer.json"));
    return FromTokenizerJson(json, config);
  }
  if (std::filesystem::exists(directory / "tiktoken.model", error)) {
    FLUVIAL_ASSIGN_OR_RETURN(const std::string ranks, ReadFile(directory / "tiktoken.model"));
    return FromTiktoken(ranks, config);
  }
  return Status::UnusableModel(directory.string() +
                               " has neither tokenizer.json nor tiktoken.model; give a directory with one of them");
}

Status Tokenizer::Data::AddTokens(std::vector<AddedToken> tokens) {
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    const std::string which = "added token '" + token.content + "'";
    if (token.id > Vocabulary::kMaxId) {
      return Status::UnusableModel(which + " has the id " + std::to_string(token.id) + ", above the largest allowed, " +
                                   std::to_string(Vocabulary::kMaxId));
    }
    std::string bytes;
    const bool in_alphabet = AppendAlphabetBytes(token.content, &bytes);
    const Vocabulary& vocabulary = bpe.vocabulary();
    const uint32_t known = in_alphabet ? vocabulary.Find(bytes) : vocabulary.FindRaw(token.content);
    if (!tiktoken && known != Vocabulary::kNone && known != token.id) {
      return Status::UnusableModel(which + " has the id " + std::to_string(token.id) + ", but " +
                                   std::to_string(known) + " in model.vocab; the file contradicts itself");
    }
    if (vocabulary.Has(token.id) && (tiktoken || known == Vocabulary::kNone)) {
      return Status::UnusableModel(which + " has the id " + std::to_string(token.id) +
                                   " of another token of the vocabulary; the file contradicts itself");
    }
    const auto same = added_by_content.find(token.content);
    if (same != added_by_content.end()) {
      if (same->second->id != token.id) {
        return Status::UnusableModel(which + " has the ids " + std::to_string(same->second->id) + " and " +
                                     std::to_string(token.id) + "; the files contradict each other");
      }
      // The flags of the later file win; content and id are the same.
      AddedToken& have = *same->second;
      have.special = token.special;
      have.single_word = token.single_word;
      have.lstrip = token.lstrip;
      have.rstrip = token.rstrip;
      have.normalized = token.normalized;
      continue;
    }
    if (const auto taken = added_by_id.find(token.id); taken != added_by_id.end()) {
      return Status::UnusableModel(which + " has the same id as '" + taken->second->content + "', " +
                                   std::to_string(token.id) + "; the files contradict each other");
    }
    added.push_back(std::make_unique<AddedToken>(std::move(token)));
    added_by_id[added.back()->id] = added.back().get();
    added_by_content[added.back()->content] = added.back().get();
  }
  return Status::Ok();
}

Status Tokenizer::Data::Finish() {
  std::vector<const AddedToken*> raw, normalized;
  std::vector<std::string> raw_patterns, normalized_patterns;
  vocab_size = bpe.vocabulary().id_end();
  for (const auto& token : added) {
    vocab_size = std::max(vocab_size, size_t{token->id} + 1);
    std::string pattern = token->content;
    if (token->normalized) {
      for (const NormalForm form : normalizers) {
        std::string next;
        FLUVIAL_RETURN_IF_ERROR(AppendNormalized(form, pattern, &next));
        pattern = std::move(next);
      }
    }
    // Added tokens pass the ByteLevel decoder like all others (Hugging Face tokenizers); tiktoken keeps them apart.
    std::string bytes;
    if (tiktoken || !AppendAlphabetBytes(pattern, &bytes)) bytes = pattern;
    added_bytes[token->id] = std::move(bytes);
    (token->normalized ? normalized : raw).push_back(token.get());
    (token->normalized ? normalized_patterns : raw_patterns).push_back(std::move(pattern));
  }
  raw_matcher.Build(raw, raw_patterns);
  normalized_matcher.Build(normalized, normalized_patterns);
  decoded.resize(vocab_size);
  for (uint32_t id = 0; id < bpe.vocabulary().id_end(); ++id) decoded[id].bytes = bpe.vocabulary().Bytes(id);
  for (const auto& token : added) decoded[token->id] = {added_bytes[token->id], token->special};
  return Status::Ok();
}

std::unique_ptr<Tokenizer::Data::Scratch> Tokenizer::Data::TakeScratch() const {
  {
    const std::lock_guard lock(scratch_mutex_);
    if (!scratch_.empty()) {
      auto scratch = std::move(scratch_.back());
      scratch_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Tokenizer::Data::GiveBack(std::unique_ptr<Scratch> scratch) const {
  const std::lock_guard lock(scratch_mutex_);
  if (scratch_.size() < kKeptScratches) scratch_.push_back(std::move(scratch));
}

Status Tokenizer::Data::EncodePlain(std::string_view text, Scratch* scratch, std::vector<TokenId>* out) const {
  return pre_tokenizer.Run(text, &scratch->regex,
                           [&](std::string_view piece) { bpe.Encode(piece, &scratch->bpe, out); });
}

Status Tokenizer::Data::EncodeText(std::string_view text, bool parse_special, Scratch* scratch,
                                   std::vector<TokenId>* out) const {
  raw_matcher.Split(text, parse_special, &scratch->parts);
  for (const auto& part : scratch->parts) {
    if (part.token != nullptr) {
      out->push_back(static_cast<TokenId>(part.token->id));
      continue;
    }
    std::string_view plain = text.substr(part.begin, part.end - part.begin);
    for (const NormalForm form : normalizers) {
      if (form == NormalForm::kNfc && IsSurelyNfc(plain)) continue;
      std::string next;
      FLUVIAL_RETURN_IF_ERROR(AppendNormalized(form, plain, &next));
      scratch->normalized = std::move(next);
      plain = scratch->normalized;
    }
    if (normalized_matcher.empty()) {
      FLUVIAL_RETURN_IF_ERROR(EncodePlain(plain, scratch, out));
      continue;
    }
    normalized_matcher.Split(plain, parse_special, &scratch->normalized_parts);
    for (const auto& inner : scratch->normalized_parts) {
      if (inner.token != nullptr) {
        out->push_back(static_cast<TokenId>(inner.token->id));
      } else {
        FLUVIAL_RETURN_IF_ERROR(EncodePlain(plain.substr(inner.begin, inner.end - inner.begin), scratch, out));
      }
    }
  }
  return Status::Ok();
}

Status Tokenizer::Data::EncodeTiktoken(std::string_view text, bool parse_special, Scratch* scratch,
                                       std::vector<TokenId>* out) const {
  constexpr size_t kChunk = 400'000, kRun = 25'000;
  const auto encode = [&](size_t begin, size_t end) {
    const std::string_view piece = text.substr(begin, end - begin);
    return parse_special ? EncodeText(piece, true, scratch, out) : EncodePlain(piece, scratch, out);
  };
  if (text.size() <= kRun) return encode(0, text.size());  // bytes are at least as many as characters
  size_t begin = 0, in_chunk = 0, run = 0;
  bool run_is_space = false;
  for (size_t i = 0; i < text.size();) {
    size_t next = i;
    const bool space = IsPythonSpace(DecodeValid(text, &next));
    const bool new_chunk = in_chunk == kChunk;
    if (new_chunk || in_chunk == 0 || space != run_is_space) {
      run = 0;
      run_is_space = space;
    }
    const bool run_full = run == kRun;
    if (new_chunk || run_full) {
      FLUVIAL_RETURN_IF_ERROR(encode(begin, i));
      begin = i;
      run = 0;
      if (new_chunk) in_chunk = 0;
    }
    ++run;
    ++in_chunk;
    i = next;
  }
  return encode(begin, text.size());
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return Status::InvalidArgument("the text has " + std::to_string(text.size()) + " bytes; at most " +
                                   std::to_string(kMaxTextBytes) + " can be encoded at once, so split it");
  }
  std::string repaired;
  if (!IsValidUtf8(text)) {
    repaired = ReplaceInvalidUtf8(text);
    text = repaired;
  }
  std::vector<TokenId> out;
  out.reserve(text.size() / 3 + 8);
  if (options.add_special_tokens) out = data_->prefix;
  auto scratch = data_->TakeScratch();
  const Status status = data_->tiktoken ? data_->EncodeTiktoken(text, options.parse_special, scratch.get(), &out)
                                        : data_->EncodeText(text, options.parse_special, scratch.get(), &out);
  data_->GiveBack(std::move(scratch));
  FLUVIAL_RETURN_IF_ERROR(status);
  if (options.add_special_tokens) out.insert(out.end(), data_->suffix.begin(), data_->suffix.end());
  return out;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, const DecodeOptions& options) const {
  std::string bytes;
  bytes.reserve(ids.size() * 4);
  for (const TokenId id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= data_->decoded.size()) continue;
    const Data::Decoded& token = data_->decoded[static_cast<size_t>(id)];
    if (!options.skip_special_tokens || !token.special) bytes += token.bytes;
  }
  if (!IsValidUtf8(bytes)) return ReplaceInvalidUtf8(bytes);
  return bytes;
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= data_->decoded.size()) return {};
  return data_->decoded[static_cast<size_t>(id)].bytes;
}

std::optional<TokenId> Tokenizer::TokenToId(std::string_view token) const {
  if (const auto it = data_->added_by_content.find(token); it != data_->added_by_content.end()) {
    return static_cast<TokenId>(it->second->id);
  }
  if (!IsValidUtf8(token)) return std::nullopt;
  std::string bytes;
  const Vocabulary& vocabulary = data_->bpe.vocabulary();
  const uint32_t id = AppendAlphabetBytes(token, &bytes) ? vocabulary.Find(bytes) : vocabulary.FindRaw(token);
  if (id == Vocabulary::kNone) return std::nullopt;
  return static_cast<TokenId>(id);
}

bool Tokenizer::IsSpecial(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < data_->decoded.size() && data_->decoded[static_cast<size_t>(id)].special;
}

size_t Tokenizer::vocab_size() const { return data_->vocab_size; }

const std::map<std::string, std::string>& Tokenizer::special_tokens() const { return data_->config.special_tokens; }

}  // namespace fluvial::text
