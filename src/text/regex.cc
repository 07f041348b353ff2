// SPDX-License-Identifier: Apache-2.0
// Adapter: the only file that sees PCRE2.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

namespace fluvial::text {
namespace {

constexpr size_t kJitStackStart = size_t{32} << 10;
constexpr size_t kJitStackMax = size_t{16} << 20;  // reserved; used only by patterns with groups on very long words

std::string ErrorText(int code) {
  std::array<unsigned char, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct Regex::Code {
  explicit Code(pcre2_code* c) : code(c) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
  bool jit = false;
};

struct Regex::Scratch::Impl {
  Impl()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)) {
    if (context != nullptr && stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Impl() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

Regex::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {}
Regex::Scratch::~Scratch() = default;
Regex::Scratch::Scratch(Scratch&&) noexcept = default;
Regex::Scratch& Regex::Scratch::operator=(Scratch&&) noexcept = default;

Result<Regex> Regex::Compile(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE where = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &where, nullptr);
  if (code == nullptr) {
    return Status::UnusableModel("the pattern does not compile: " + ErrorText(error) + " at byte " +
                                 std::to_string(where));
  }
  auto owner = std::make_shared<Code>(code);
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) return Status::UnusableModel("the pattern can match the empty string");
  owner->jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  Regex regex;
  regex.code_ = std::move(owner);
  return regex;
}

Result<size_t> Regex::Next(std::string_view text, size_t* offset, std::span<Span> spans, Scratch* scratch) const {
  const Scratch::Impl& s = *scratch->impl_;
  if (s.data == nullptr || s.context == nullptr) return Status::Resource("no memory for matching a pattern");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(s.data);
  size_t found = 0;
  while (found < spans.size() && *offset < text.size()) {
    // The fast entry checks nothing: the text is valid, the offset lies on a character, and JIT was compiled.
    int rc = code_->jit
                 ? pcre2_jit_match(code_->code, subject, text.size(), *offset, 0, s.data, s.context)
                 : pcre2_match(code_->code, subject, text.size(), *offset, PCRE2_NO_UTF_CHECK, s.data, s.context);
    if (code_->jit && rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc =
          pcre2_match(code_->code, subject, text.size(), *offset, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s.data, s.context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return Status::Resource("matching the pre-tokenizer's pattern failed at byte " + std::to_string(*offset) +
                              " of the text: " + ErrorText(rc) + "; split the text");
    }
    spans[found++] = {ovector[0], ovector[1]};
    *offset = ovector[1];
  }
  return found;
}

}  // namespace fluvial::text
