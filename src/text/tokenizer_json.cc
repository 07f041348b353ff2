// SPDX-License-Identifier: Apache-2.0
// tokenizer.json of Hugging Face tokenizers, as far as byte-level BPE goes. Vocabulary and merges are read with
// JsonReader, everything else is small and goes through nlohmann/json.
#include <nlohmann/json.hpp>
#include <optional>

#include "text/byte_level.h"
#include "text/json_reader.h"
#include "text/regex_dialect.h"
#include "text/tokenizer_data.h"
#include "text/utf8.h"

namespace fluvial::text {
namespace {

using Json = nlohmann::json;

Status Unsupported(std::string_view field, std::string_view what) {
  return Status::UnusableModel("tokenizer.json: " + std::string(field) + " " + std::string(what) +
                               ", which is not supported; use a byte-level BPE tokenizer");
}

Status Damaged(std::string_view field, std::string_view what) {
  return Status::UnusableModel("tokenizer.json: " + std::string(field) + " " + std::string(what) +
                               "; fetch the file again");
}

std::string TypeOf(const Json& value) {
  const auto it = value.is_object() ? value.find("type") : value.end();
  return it != value.end() && it->is_string() ? it->get<std::string>() : std::string();
}

bool Flag(const Json& object, const char* name, bool fallback) {
  const auto it = object.find(name);
  return it != object.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

std::string StringOr(const Json& object, const char* name, std::string_view fallback) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string(fallback);
}

// --- model ----------------------------------------------------------------------------------------------------

Status ReadVocabulary(JsonReader& reader, Vocabulary* vocabulary) {
  std::string_view key;
  std::string bytes;
  if (reader.EnterObject()) {
    while (reader.NextMember(&key)) {
      bytes.clear();
      const bool in_alphabet = AppendAlphabetBytes(key, &bytes);
      if (!in_alphabet) bytes = key;
      uint32_t id = 0;
      if (!reader.Unsigned(&id)) break;
      if (const Status added = vocabulary->Add(id, bytes, in_alphabet); !added.ok()) {
        return Damaged("model.vocab:", added.message());
      }
    }
  }
  return reader.status();
}

// Ids of a merge's halves and of what they give. Strings are in the byte alphabet, except in odd files.
struct MergeReader {
  const Vocabulary& vocabulary;
  std::string left, right, joined;

  uint32_t Find(std::string_view token, std::string* bytes) const {
    bytes->clear();
    return AppendAlphabetBytes(token, bytes) ? vocabulary.Find(*bytes) : vocabulary.FindRaw(token);
  }

  Status Put(std::string_view a, std::string_view b, uint32_t rank, PairMap* pairs) {
    const auto missing = [&](std::string_view token) {
      return Damaged("model.merges[" + std::to_string(rank) + "]",
                     "needs the token '" + std::string(token) + "', which model.vocab does not have");
    };
    const uint32_t left_id = Find(a, &left);
    if (left_id == Vocabulary::kNone) return missing(a);
    const uint32_t right_id = Find(b, &right);
    if (right_id == Vocabulary::kNone) return missing(b);
    uint32_t id = Vocabulary::kNone;
    if (!left.empty() && !right.empty()) {
      joined.assign(left).append(right);
      id = vocabulary.Find(joined);
    } else {
      joined.assign(a).append(b);
      id = vocabulary.FindRaw(joined);
    }
    if (id == Vocabulary::kNone) return missing(std::string(a) + std::string(b));
    pairs->Put(left_id, right_id, {rank, id});
    return Status::Ok();
  }
};

Status ReadMerges(JsonReader& reader, const Vocabulary& vocabulary, PairMap* pairs) {
  pairs->Reserve(vocabulary.size());
  MergeReader merge{vocabulary, {}, {}, {}};
  std::string first;
  std::string_view text;
  uint32_t rank = 0;
  if (reader.EnterArray()) {
    while (reader.NextElement()) {
      if (reader.Peek() == JsonReader::Kind::kArray) {
        std::string_view second;
        reader.EnterArray();
        if (!reader.NextElement() || !reader.String(&text)) break;
        first = text;
        if (!reader.NextElement() || !reader.String(&second)) break;
        FLUVIAL_RETURN_IF_ERROR(merge.Put(first, second, rank, pairs));
        if (reader.NextElement())
          return Damaged("model.merges[" + std::to_string(rank) + "]", "has more than two parts");
      } else {
        if (!reader.String(&text)) break;
        if (text.starts_with("#version")) continue;
        const size_t blank = text.find(' ');
        if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos) {
          return Damaged("model.merges[" + std::to_string(rank) + "]", "is not two tokens with a blank between");
        }
        FLUVIAL_RETURN_IF_ERROR(merge.Put(text.substr(0, blank), text.substr(blank + 1), rank, pairs));
      }
      ++rank;
    }
  }
  return reader.status();
}

Status ReadModel(std::string_view raw, Bpe* bpe) {
  std::string_view vocab, merges, value;
  Json rest = Json::object();
  JsonReader reader(raw, "tokenizer.json: model");
  std::string_view key;
  if (reader.EnterObject()) {
    while (reader.NextMember(&key)) {
      const std::string name(key);
      if (!reader.Skip(&value)) break;
      if (name == "vocab") {
        vocab = value;
      } else if (name == "merges") {
        merges = value;
      } else {
        rest[name] = Json::parse(value, nullptr, false);
      }
    }
  }
  FLUVIAL_RETURN_IF_ERROR(reader.status());
  const std::string type = TypeOf(rest);
  if (!type.empty() && type != "BPE") return Unsupported("model.type", "is '" + type + "'");
  if (vocab.empty()) return Damaged("model.vocab", "is missing");
  if (merges.empty()) return Damaged("model.merges", "is missing");
  if (rest.contains("dropout") && !rest["dropout"].is_null() && rest["dropout"] != 0.0) {
    return Unsupported("model.dropout", "is " + rest["dropout"].dump());
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!StringOr(rest, name, "").empty()) {
      return Unsupported(std::string("model.") + name, "is '" + StringOr(rest, name, "") + "'");
    }
  }
  if (Flag(rest, "byte_fallback", false)) return Unsupported("model.byte_fallback", "is true");

  JsonReader vocab_reader(vocab, "tokenizer.json: model.vocab");
  bpe->vocabulary().Reserve(vocab.size() / 24, vocab.size() / 2);
  FLUVIAL_RETURN_IF_ERROR(ReadVocabulary(vocab_reader, &bpe->vocabulary()));
  JsonReader merges_reader(merges, "tokenizer.json: model.merges");
  FLUVIAL_RETURN_IF_ERROR(ReadMerges(merges_reader, bpe->vocabulary(), &bpe->pairs()));
  bpe->Finish(/*by_rank=*/false, Flag(rest, "ignore_merges", false));
  if (!StringOr(rest, "unk_token", "").empty()) {
    for (int byte = 0; byte < 256; ++byte) {
      if (bpe->ByteId(static_cast<uint8_t>(byte)) != Vocabulary::kNone) continue;
      return Unsupported("model.unk_token", "is set and model.vocab has no token for the byte " + std::to_string(byte));
    }
  }
  return Status::Ok();
}

// --- the small parts ------------------------------------------------------------------------------------------

Status ReadNormalizer(const Json& json, std::vector<NormalForm>* out) {
  if (json.is_null()) return Status::Ok();
  const std::string type = TypeOf(json);
  if (type == "Sequence") {
    const auto list = json.find("normalizers");
    if (list == json.end() || !list->is_array()) return Damaged("normalizer.normalizers", "is not a list");
    for (const Json& item : *list) FLUVIAL_RETURN_IF_ERROR(ReadNormalizer(item, out));
    return Status::Ok();
  }
  constexpr std::pair<std::string_view, NormalForm> kForms[] = {
      {"NFC", NormalForm::kNfc}, {"NFD", NormalForm::kNfd}, {"NFKC", NormalForm::kNfkc}, {"NFKD", NormalForm::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    out->push_back(form);
    return Status::Ok();
  }
  return Unsupported("normalizer", "is of type '" + type + "'");
}

Status AppendStage(const std::string& pcre2, std::string_view field, bool matches, bool gaps, PreTokenizer* out) {
  Result<Regex> regex = Regex::Compile(pcre2);
  if (!regex.ok()) return Unsupported(field, regex.status().message());
  out->Append({std::move(regex).value(), matches, gaps});
  return Status::Ok();
}

Status AppendPattern(std::string_view pattern, std::string_view field, bool matches, bool gaps, PreTokenizer* out) {
  const Result<std::string> pcre2 = ToPcre2(pattern);
  if (!pcre2.ok()) return Unsupported(field, pcre2.status().message());
  return AppendStage(*pcre2, field, matches, gaps, out);
}

Status ReadSplit(const Json& json, PreTokenizer* out) {
  const std::string behavior = StringOr(json, "behavior", "");
  if (behavior != "Isolated" && behavior != "Removed") {
    return Unsupported("pre_tokenizer.behavior", "is '" + behavior + "'");
  }
  // "Removed" drops the delimiters: the matches, or, inverted, what lies between them.
  const bool invert = Flag(json, "invert", false);
  const bool matches = behavior == "Isolated" || invert;
  const bool gaps = behavior == "Isolated" || !invert;
  const auto pattern = json.find("pattern");
  if (pattern != json.end() && pattern->is_object()) {
    if (const std::string regex = StringOr(*pattern, "Regex", ""); !regex.empty()) {
      return AppendPattern(regex, "pre_tokenizer.pattern.Regex:", matches, gaps, out);
    }
    if (const std::string literal = StringOr(*pattern, "String", ""); !literal.empty()) {
      return AppendStage(LiteralToPcre2(literal), "pre_tokenizer.pattern.String:", matches, gaps, out);
    }
  }
  return Damaged("pre_tokenizer.pattern", "has neither Regex nor String");
}

// `*byte_level` tells that the last stage has been seen.
Status ReadPreTokenizer(const Json& json, bool* byte_level, PreTokenizer* out) {
  const std::string type = TypeOf(json);
  if (type == "Sequence") {
    const auto list = json.find("pretokenizers");
    if (list == json.end() || !list->is_array()) return Damaged("pre_tokenizer.pretokenizers", "is not a list");
    for (const Json& item : *list) FLUVIAL_RETURN_IF_ERROR(ReadPreTokenizer(item, byte_level, out));
    return Status::Ok();
  }
  if (*byte_level) return Unsupported("pre_tokenizer", "has '" + type + "' behind ByteLevel");
  if (type == "Split") return ReadSplit(json, out);
  if (type == "Digits") {
    const bool single = Flag(json, "individual_digits", false);
    return AppendPattern(single ? "\\p{N}" : "\\p{N}+", "pre_tokenizer", true, true, out);
  }
  if (type == "Punctuation") {
    const std::string behavior = StringOr(json, "behavior", "Isolated");
    if (behavior != "Isolated" && behavior != "Removed") {
      return Unsupported("pre_tokenizer.behavior", "is '" + behavior + "'");
    }
    return AppendPattern("[!-\\/:-@\\[-`\\{-~\\p{P}]", "pre_tokenizer", behavior == "Isolated", true, out);
  }
  if (type == "ByteLevel") {
    if (Flag(json, "add_prefix_space", true)) return Unsupported("pre_tokenizer.add_prefix_space", "is true");
    if (Flag(json, "use_regex", true)) {
      FLUVIAL_RETURN_IF_ERROR(AppendPattern(Gpt2Pattern(), "pre_tokenizer", true, true, out));
    }
    *byte_level = true;
    return Status::Ok();
  }
  return Unsupported("pre_tokenizer", "is of type '" + type + "'");
}

Status ReadDecoder(const Json& json) {
  std::string type = TypeOf(json);
  if (type == "Sequence") {
    const auto list = json.find("decoders");
    if (list != json.end() && list->is_array() && list->size() == 1) type = TypeOf(list->front());
  }
  return type == "ByteLevel" ? Status::Ok() : Unsupported("decoder", "is of type '" + type + "'");
}

Status ReadTemplate(const Json& json, Tokenizer::Data* data) {
  const auto single = json.find("single");
  const auto specials = json.find("special_tokens");
  if (single == json.end() || !single->is_array()) return Damaged("post_processor.single", "is not a list");
  bool behind = false;
  for (const Json& item : *single) {
    if (item.is_object() && item.contains("Sequence")) {
      if (behind) return Unsupported("post_processor.single", "has the text twice");
      behind = true;
      continue;
    }
    const auto special = item.is_object() ? item.find("SpecialToken") : item.end();
    if (special == item.end()) return Damaged("post_processor.single", "has an unknown item");
    const std::string name = StringOr(*special, "id", "");
    const Json* ids = nullptr;
    if (specials != json.end() && specials->is_object() && specials->contains(name)) {
      const Json& entry = (*specials)[name];
      if (entry.is_object() && entry.contains("ids")) ids = &entry["ids"];
    }
    if (ids == nullptr || !ids->is_array()) return Damaged("post_processor.special_tokens", "lacks '" + name + "'");
    for (const Json& id : *ids) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > Vocabulary::kMaxId) {
        return Damaged("post_processor.special_tokens", "has a bad id for '" + name + "'");
      }
      (behind ? data->suffix : data->prefix).push_back(id.get<TokenId>());
    }
  }
  return Status::Ok();
}

Status ReadPostProcessor(const Json& json, Tokenizer::Data* data) {
  const std::string type = TypeOf(json);
  if (json.is_null() || type == "ByteLevel") return Status::Ok();  // ByteLevel only trims offsets
  if (type == "TemplateProcessing") return ReadTemplate(json, data);
  if (type == "Sequence") {
    const auto list = json.find("processors");
    if (list == json.end() || !list->is_array()) return Damaged("post_processor.processors", "is not a list");
    for (const Json& item : *list) FLUVIAL_RETURN_IF_ERROR(ReadPostProcessor(item, data));
    return Status::Ok();
  }
  return Unsupported("post_processor", "is of type '" + type + "'");
}

Result<std::vector<AddedToken>> ReadAddedTokens(const Json& json) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) return tokens;
  if (!json.is_array()) return Damaged("added_tokens", "is not a list");
  for (const Json& item : json) {
    const auto id = item.is_object() ? item.find("id") : item.end();
    if (id == item.end() || !id->is_number_unsigned() || id->get<uint64_t>() > Vocabulary::kMaxId ||
        !item.contains("content") || !item["content"].is_string()) {
      return Damaged("added_tokens[" + std::to_string(tokens.size()) + "]", "has no usable id and content");
    }
    AddedToken token;
    token.id = id->get<uint32_t>();
    token.content = item["content"].get<std::string>();
    token.special = Flag(item, "special", false);
    token.single_word = Flag(item, "single_word", false);
    token.lstrip = Flag(item, "lstrip", false);
    token.rstrip = Flag(item, "rstrip", false);
    token.normalized = Flag(item, "normalized", !token.special);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

Result<Tokenizer> Tokenizer::FromTokenizerJson(std::string_view json, std::string_view config) {
  if (const size_t good = ValidUtf8Prefix(json); good != json.size()) {
    return Damaged("byte " + std::to_string(good), "is not valid UTF-8");
  }
  std::string_view model;
  Json rest = Json::object();
  JsonReader reader(json, "tokenizer.json");
  std::string_view key, value;
  if (reader.EnterObject()) {
    while (reader.NextMember(&key)) {
      const std::string name(key);
      if (!reader.Skip(&value)) break;
      if (name == "model") {
        model = value;
        continue;
      }
      rest[name] = Json::parse(value, nullptr, false);
      if (rest[name].is_discarded()) return Damaged(name, "is not valid JSON");
    }
    reader.AtEnd();
  }
  FLUVIAL_RETURN_IF_ERROR(reader.status());
  if (model.empty()) return Damaged("model", "is missing");
  const auto part = [&](const char* name) { return rest.contains(name) ? rest[name] : Json(); };

  auto data = std::make_shared<Data>();
  FLUVIAL_ASSIGN_OR_RETURN(data->config, ParseTokenizerConfig(config));
  FLUVIAL_RETURN_IF_ERROR(ReadNormalizer(part("normalizer"), &data->normalizers));
  bool byte_level = false;
  if (part("pre_tokenizer").is_null()) return Unsupported("pre_tokenizer", "is null");
  FLUVIAL_RETURN_IF_ERROR(ReadPreTokenizer(part("pre_tokenizer"), &byte_level, &data->pre_tokenizer));
  if (!byte_level) return Unsupported("pre_tokenizer", "has no ByteLevel");
  FLUVIAL_RETURN_IF_ERROR(ReadDecoder(part("decoder")));
  FLUVIAL_RETURN_IF_ERROR(ReadPostProcessor(part("post_processor"), data.get()));
  FLUVIAL_RETURN_IF_ERROR(ReadModel(model, &data->bpe));
  FLUVIAL_ASSIGN_OR_RETURN(std::vector<AddedToken> added, ReadAddedTokens(part("added_tokens")));
  FLUVIAL_RETURN_IF_ERROR(data->AddTokens(std::move(added)));
  FLUVIAL_RETURN_IF_ERROR(data->AddTokens(data->config.added_tokens));
  FLUVIAL_RETURN_IF_ERROR(data->Finish());
  return Tokenizer(std::shared_ptr<const Data>(std::move(data)));
}

}  // namespace fluvial::text
