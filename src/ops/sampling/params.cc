// SPDX-License-Identifier: Apache-2.0
// Checks of sampling parameters and the token history.
#include <cmath>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/text_form.h"
#include "ops/sampling/sampling.h"

namespace fluvial::ops::sampling {
namespace {

Status Bad(std::string_view name, const std::string& value, std::string_view range) {
  return Status::InvalidArgument(std::string(name) + " is " + value + ", it must be " + std::string(range));
}

/// value in [low, high], or (low, high] with `open`; NaN is outside.
Status CheckFloat(std::string_view name, float value, float low, float high, bool open, std::string_view range) {
  const bool inside = (open ? value > low : value >= low) && value <= high;
  return inside ? Status::Ok() : Bad(name, FormatFloat(value), range);
}

}  // namespace

Status Validate(const Params& p, int64_t vocab) {
  FLUVIAL_RETURN_IF_ERROR(CheckFloat("temperature", p.temperature, 0, 100, false, "from 0 (greedy) to 100"));
  if (p.top_k < -1) return Bad("top_k", std::to_string(p.top_k), "at least 1, or 0 or -1 for no limit");
  FLUVIAL_RETURN_IF_ERROR(CheckFloat("top_p", p.top_p, 0, 1, true, "above 0 and at most 1"));
  FLUVIAL_RETURN_IF_ERROR(CheckFloat("min_p", p.min_p, 0, 1, false, "from 0 to 1"));
  FLUVIAL_RETURN_IF_ERROR(
      CheckFloat("repetition_penalty", p.repetition_penalty, 0, 100, true, "above 0 and at most 100"));
  FLUVIAL_RETURN_IF_ERROR(CheckFloat("presence_penalty", p.presence_penalty, -2, 2, false, "from -2 to 2"));
  FLUVIAL_RETURN_IF_ERROR(CheckFloat("frequency_penalty", p.frequency_penalty, -2, 2, false, "from -2 to 2"));
  if (p.logprobs < -1 || p.logprobs > kMaxLogprobs) {
    return Bad("logprobs", std::to_string(p.logprobs), "-1 (none) or 0 to " + std::to_string(kMaxLogprobs));
  }
  std::unordered_set<int32_t> seen;
  for (const auto& [id, bias] : p.logit_bias) {
    const std::string name = "logit_bias of token " + std::to_string(id);
    if (id < 0 || id >= vocab) {
      return Status::InvalidArgument("logit_bias has token " + std::to_string(id) + ", it must be 0 to " +
                                     std::to_string(vocab - 1));
    }
    FLUVIAL_RETURN_IF_ERROR(CheckFloat(name, bias, -100, 100, false, "from -100 to 100"));
    if (!seen.insert(id).second) return Status::InvalidArgument(name + " is given twice, give it once");
  }
  return Status::Ok();
}

TokenHistory::Entry& TokenHistory::At(int32_t id) {
  const auto [it, inserted] = index_.emplace(id, entries_.size());
  if (inserted) entries_.push_back({id, 0});
  return entries_[it->second];
}

void TokenHistory::AddPrompt(std::span<const int32_t> ids) {
  for (int32_t id : ids) At(id);
}

void TokenHistory::AddOutput(int32_t id) { ++At(id).output_count; }

void TokenHistory::Clear() {
  entries_.clear();
  index_.clear();
}

}  // namespace fluvial::ops::sampling
