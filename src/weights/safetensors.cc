// SPDX-License-Identifier: Apache-2.0
#include "weights/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

namespace fluvial::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used in place");

constexpr const char* kAgain = "; the file is damaged or was not written completely: download or convert it again";

std::optional<DType> DTypeOfName(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> kNames[] = {
      {"F64", DType::kF64}, {"F32", DType::kF32},        {"F16", DType::kF16},        {"BF16", DType::kBF16},
      {"I64", DType::kI64}, {"I32", DType::kI32},        {"I16", DType::kI16},        {"I8", DType::kI8},
      {"U8", DType::kU8},   {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2}, {"BOOL", DType::kBool},
  };
  for (const auto& [known, dtype] : kNames) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

/// Text of a stranger's file in a message: cut, control bytes replaced.
std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 120)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return out + (text.size() > 120 ? "...'" : "'");
}

/// Accepts exactly the header's shape: an object of tensors {dtype, shape, data_offsets} and one optional
/// __metadata__ object of strings. Returning false stops the parser; `error` then says why.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(uint64_t data_begin) : data_begin_(data_begin) {}

  std::vector<TensorEntry> entries;
  std::string error;

  bool null() override { return Fail("null"); }
  bool boolean(bool) override { return Fail("true or false"); }
  bool number_integer(number_integer_t v) override { return Fail("the negative number " + std::to_string(v)); }
  bool number_unsigned(number_unsigned_t v) override { return Number(v); }
  bool number_float(number_float_t, const string_t& s) override { return Fail("the number " + Quoted(s)); }
  bool binary(binary_t&) override { return Fail("binary data"); }

  bool string(string_t& value) override {
    if (at_ == At::kMetadata) return true;
    if (at_ != At::kTensor || field_ != Field::kDType) return Fail("the string " + Quoted(value));
    const auto dtype = DTypeOfName(value);
    if (!dtype) {
      return Error("tensor " + Quoted(entry_.name) + " has dtype " + Quoted(value) +
                   ", but only F64 F32 F16 BF16 I64 I32 I16 I8 U8 F8_E4M3 F8_E5M2 BOOL are supported: convert it");
    }
    entry_.dtype = *dtype;
    seen_ |= kSawDType;
    return true;
  }

  bool start_object(std::size_t) override {
    switch (at_) {
      case At::kStart:
        at_ = At::kTop;
        return true;
      case At::kTopValue:
        at_ = entry_.name == "__metadata__" ? At::kMetadata : At::kTensor;
        return true;
      default:
        return Fail("an object");
    }
  }

  bool key(string_t& name) override {
    if (at_ == At::kMetadata) return true;
    if (at_ == At::kTop) {
      if (!names_.insert(name).second) return Error("tensor " + Quoted(name) + " appears twice");
      entry_ = TensorEntry{};
      entry_.name = name;
      offsets_.clear();
      seen_ = 0;
      at_ = At::kTopValue;
      return true;
    }
    if (name == "dtype") {
      field_ = Field::kDType;
    } else if (name == "shape") {
      field_ = Field::kShape;
    } else if (name == "data_offsets") {
      field_ = Field::kOffsets;
    } else {
      return Error("tensor " + Quoted(entry_.name) + " has the unknown field " + Quoted(name));
    }
    const int bit = field_ == Field::kDType ? kSawDType : field_ == Field::kShape ? kSawShape : kSawOffsets;
    if ((seen_ & bit) != 0) return Error("tensor " + Quoted(entry_.name) + " has the field " + Quoted(name) + " twice");
    return true;
  }

  bool end_object() override {
    if (at_ == At::kTop) {
      at_ = At::kEnd;
      return true;
    }
    if (at_ == At::kTensor) {
      if (seen_ != (kSawDType | kSawShape | kSawOffsets)) {
        return Error("tensor " + Quoted(entry_.name) + " lacks dtype, shape or data_offsets");
      }
      if (!FinishTensor()) return false;
    }
    at_ = At::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (at_ != At::kTensor || field_ == Field::kDType) return Fail("an array");
    at_ = At::kArray;
    return true;
  }
  bool end_array() override {
    seen_ |= field_ == Field::kShape ? kSawShape : kSawOffsets;
    at_ = At::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Error("the header is not JSON (byte " + std::to_string(8 + position) + ")");
  }

 private:
  enum class At { kStart, kTop, kTopValue, kMetadata, kTensor, kArray, kEnd };
  enum class Field { kDType, kShape, kOffsets };
  enum Seen { kSawDType = 1, kSawShape = 2, kSawOffsets = 4 };

  bool Error(std::string text) {
    if (error.empty()) error = std::move(text);
    return false;
  }
  bool Fail(const std::string& what) {
    const std::string where = at_ == At::kStart ? "at its start" : "in entry " + Quoted(entry_.name);
    return Error("the header has " + what + " " + where + " where the format does not allow it");
  }

  bool Number(uint64_t value) {
    if (at_ != At::kArray) return Fail("the number " + std::to_string(value));
    if (field_ == Field::kOffsets) {
      if (offsets_.size() == 2) return Error("tensor " + Quoted(entry_.name) + " has more than two data_offsets");
      offsets_.push_back(value);
      return true;
    }
    if (entry_.shape.size() == static_cast<size_t>(TensorView::kMaxRank)) {
      return Error("tensor " + Quoted(entry_.name) + " has more than " + std::to_string(TensorView::kMaxRank) +
                   " dimensions");
    }
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return Error("tensor " + Quoted(entry_.name) + " has a dimension of " + std::to_string(value));
    }
    entry_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool FinishTensor() {
    if (offsets_.size() != 2) return Error("tensor " + Quoted(entry_.name) + " needs two data_offsets");
    if (offsets_[0] > offsets_[1] || offsets_[1] > UINT64_MAX - data_begin_) {
      return Error("tensor " + Quoted(entry_.name) + " has data_offsets [" + std::to_string(offsets_[0]) + ", " +
                   std::to_string(offsets_[1]) + "]");
    }
    uint64_t bytes = SizeOf(entry_.dtype);
    for (const int64_t d : entry_.shape) {
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(d), &bytes)) {
        return Error("tensor " + Quoted(entry_.name) + " has a shape larger than any file");
      }
    }
    if (bytes != offsets_[1] - offsets_[0]) {
      return Error("tensor " + Quoted(entry_.name) + " needs " + std::to_string(bytes) +
                   " bytes by dtype and shape, but its data_offsets span " + std::to_string(offsets_[1] - offsets_[0]));
    }
    entry_.begin = data_begin_ + offsets_[0];
    entry_.end = data_begin_ + offsets_[1];
    entries.push_back(std::move(entry_));
    return true;
  }

  uint64_t data_begin_;
  At at_ = At::kStart;
  Field field_ = Field::kDType;
  int seen_ = 0;
  TensorEntry entry_;
  std::vector<uint64_t> offsets_;
  std::unordered_set<std::string> names_;
};

}  // namespace

Result<std::vector<TensorEntry>> ParseSafetensorsHeader(std::span<const uint8_t> file, std::string_view file_name) {
  const auto bad = [&](const std::string& what) {
    return Status::UnusableModel(std::string(file_name) + ": " + what + kAgain);
  };
  if (file.size() < 8) return bad("only " + std::to_string(file.size()) + " bytes, a safetensors file has at least 8");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  if (header > kMaxSafetensorsHeader) {
    return bad("header of " + std::to_string(header) + " bytes, more than the " +
               std::to_string(kMaxSafetensorsHeader) + " the format allows");
  }
  if (header > file.size() - 8) {
    return bad("header of " + std::to_string(header) + " bytes in a file of " + std::to_string(file.size()));
  }
  HeaderHandler handler(8 + header);
  const char* text = reinterpret_cast<const char*>(file.data()) + 8;
  try {
    const bool parsed = nlohmann::json::sax_parse(text, text + header, &handler);
    if (!parsed) return bad(handler.error.empty() ? "the header is not JSON" : handler.error);
  } catch (const std::exception&) {
    return bad("the header is not JSON");
  }
  std::vector<TensorEntry>& entries = handler.entries;
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t at = 8 + header;
  for (const TensorEntry& e : entries) {
    if (e.end > file.size()) {
      return bad("tensor " + Quoted(e.name) + " ends at byte " + std::to_string(e.end) + " of a file of " +
                 std::to_string(file.size()));
    }
    if (e.begin < at) return bad("tensor " + Quoted(e.name) + " overlaps the tensor before it");
    if (e.begin > at) return bad("unused bytes lie before tensor " + Quoted(e.name));
    at = e.end;
  }
  if (at != file.size()) {
    return bad(std::to_string(file.size() - at) + " bytes after the last tensor belong to none");
  }
  return std::move(entries);
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile out;
  FLUVIAL_ASSIGN_OR_RETURN(out.file_, MappedFile::Open(path));
  FLUVIAL_ASSIGN_OR_RETURN(out.entries_, ParseSafetensorsHeader({out.file_.data(), out.file_.bytes()}, path));
  return out;
}

}  // namespace fluvial::weights
