// SPDX-License-Identifier: Apache-2.0
#include "ops/vision_attention/ragged_plan.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/arena.h"

namespace fluvial::ops::vision_attention {
namespace {

constexpr int64_t kKi = 1024;

Status Bad(const std::string& what) { return Status::InvalidArgument("ragged plan: " + what); }

bool AllEqual(std::span<const int64_t> lengths) {
  return !lengths.empty() && lengths.front() > 0 &&
         std::all_of(lengths.begin(), lengths.end(), [&](int64_t n) { return n == lengths.front(); });
}

}  // namespace

RaggedRules RaggedRules::For(int64_t cudnn_version, int64_t frontend_version) {
  RaggedRules rules;
  rules.drop_empty = cudnn_version < 92500;
  rules.token_units = cudnn_version >= 92400 && frontend_version >= 12500;
  return rules;
}

int64_t RoundBatch(int64_t sequences) {
  for (const int64_t n : {8, 16, 32, 64}) {
    if (sequences <= n) return n;
  }
  return (sequences + 7) / 8 * 8;
}

int64_t RoundLength(int64_t length) {
  if (length <= kExactLength) return std::max<int64_t>(length, 1);
  for (int64_t n = kKi; n <= 128 * kKi; n *= 2) {
    if (length <= n) return n;
  }
  return (length + 128 * kKi - 1) / (128 * kKi) * (128 * kKi);
}

TokenStrides TokenStridesOf(const Problem& problem, const Args& args) {
  return {StridesOf(problem, args.q).token, StridesOf(problem, args.k).token, StridesOf(problem, args.v).token,
          StridesOf(problem, args.out).token, problem.lse ? LseStridesOf(problem, args.lse).token : 0};
}

size_t WorkspaceBound(int64_t batch) {
  return size_t{4} * 128 * static_cast<size_t>(std::max<int64_t>(batch, 0)) + 16 + 4;
}

int64_t RaggedPlan::StrideOf(Section section) const {
  switch (section) {
    case Section::kQ:
      return strides_.q;
    case Section::kK:
      return strides_.k;
    case Section::kV:
      return strides_.v;
    case Section::kOut:
      return strides_.out;
    case Section::kLse:
      return strides_.lse;
  }
  return 0;
}

size_t RaggedPlan::OffsetOf(int copy) const {
  // Lengths first, then the copies of the offsets.
  const auto n = static_cast<size_t>(capacity_);
  return Arena::Aligned(n * sizeof(int32_t)) + static_cast<size_t>(copy) * Arena::Aligned((n + 1) * sizeof(int64_t));
}

Status RaggedPlan::Allocate(Stream& stream) {
  for (const int64_t stride : {strides_.q, strides_.k, strides_.v, strides_.out}) {
    if (stride < 1) return Bad("a token stride is " + std::to_string(stride) + ", it must be positive");
  }
  if (strides_.lse < 0) return Bad("the token stride of lse is " + std::to_string(strides_.lse));
  int64_t largest = 1;
  for (int s = 0; s < kSections; ++s) {
    const int64_t factor = rules_.token_units ? 1 : StrideOf(static_cast<Section>(s));
    largest = std::max(largest, factor);
    const auto at = std::find(factors_.begin(), factors_.end(), factor);
    copy_[s] = static_cast<int>(at - factors_.begin());
    if (at == factors_.end()) factors_.push_back(factor);
  }
  const int64_t rows = bounds_.padded != 0 ? bounds_.padded * bounds_.max_sequences : bounds_.max_tokens;
  int64_t end = 0;
  if (__builtin_mul_overflow(rows, largest, &end)) {
    return Bad(std::to_string(rows) + " rows of stride " + std::to_string(largest) + " leave 64-bit offsets");
  }
  offset_type_ = end > INT32_MAX ? DType::kI64 : DType::kI32;
  capacity_ = RoundBatch(bounds_.max_sequences);
  staging_.assign(OffsetOf(static_cast<int>(factors_.size())), 0);
  if (stream.device().kind == DeviceKind::kCuda) {
    FLUVIAL_ASSIGN_OR_RETURN(device_, Buffer::Allocate(DeviceKind::kCuda, staging_.size(), stream.device().index));
  }
  return Status::Ok();
}

Result<RaggedPlan> RaggedPlan::Create(Stream& stream, const Bounds& bounds, const TokenStrides& strides,
                                      const RaggedRules& rules) {
  if (bounds.max_tokens < 0 || bounds.max_sequences < 0 || bounds.max_length < 0 || bounds.padded < 0 ||
      bounds.max_length > INT32_MAX) {
    return Bad("bounds must be 0 or more, the longest sequence below 2^31");
  }
  RaggedPlan plan;
  plan.bounds_ = bounds;
  plan.strides_ = strides;
  plan.rules_ = rules;
  plan.bounded_ = true;
  FLUVIAL_RETURN_IF_ERROR(plan.Allocate(stream));
  plan.batch_ = rules.round_batch ? plan.capacity_ : std::max<int64_t>(bounds.max_sequences, 1);
  plan.max_length_ = rules.round_length ? RoundLength(bounds.max_length) : std::max<int64_t>(bounds.max_length, 1);
  return plan;
}

Result<RaggedPlan> RaggedPlan::Make(Stream& stream, std::span<const int64_t> lengths, int64_t padded,
                                    const TokenStrides& strides, const RaggedRules& rules) {
  RaggedPlan plan;
  plan.strides_ = strides;
  plan.rules_ = rules;
  plan.bounds_.padded = padded;
  plan.bounds_.max_sequences = static_cast<int32_t>(lengths.size());
  for (const int64_t n : lengths) {
    if (n < 0 || n > INT32_MAX) return Bad("a length is " + std::to_string(n) + ", it must be 0..2^31-1");
    plan.bounds_.max_tokens += n;
    plan.bounds_.max_length = std::max(plan.bounds_.max_length, n);
  }
  FLUVIAL_RETURN_IF_ERROR(plan.Allocate(stream));
  FLUVIAL_RETURN_IF_ERROR(plan.Refill(stream, lengths));
  return plan;
}

Status RaggedPlan::Refill(Stream& stream, std::span<const int64_t> lengths) {
  if (stream.capturing()) return Bad("it cannot be refilled while its stream is being captured: refill it before");
  if (static_cast<int64_t>(lengths.size()) > bounds_.max_sequences) {
    return Status::Resource("ragged plan: " + std::to_string(lengths.size()) + " sequences, but its capacity is " +
                            std::to_string(bounds_.max_sequences));
  }
  int64_t tokens = 0;
  for (size_t n = 0; n < lengths.size(); ++n) {
    if (lengths[n] < 0) return Bad("sequence " + std::to_string(n) + " has length " + std::to_string(lengths[n]));
    if (lengths[n] > bounds_.max_length || (bounds_.padded != 0 && lengths[n] > bounds_.padded)) {
      return Status::Resource(
          "ragged plan: sequence " + std::to_string(n) + " has " + std::to_string(lengths[n]) +
          " tokens, but its capacity is " +
          std::to_string(bounds_.padded != 0 ? std::min(bounds_.padded, bounds_.max_length) : bounds_.max_length));
    }
    tokens += lengths[n];
  }
  if (tokens > bounds_.max_tokens) {
    return Status::Resource("ragged plan: " + std::to_string(tokens) + " tokens, but its capacity is " +
                            std::to_string(bounds_.max_tokens));
  }
  return Fill(stream, lengths);
}

Status RaggedPlan::Fill(Stream& stream, std::span<const int64_t> lengths) {
  std::vector<int32_t> kept;
  std::vector<int64_t> starts;
  int64_t tokens = 0, longest = 0;
  for (size_t n = 0; n < lengths.size(); ++n) {
    if (lengths[n] != 0 || !rules_.drop_empty) {
      kept.push_back(static_cast<int32_t>(lengths[n]));
      starts.push_back(bounds_.padded != 0 ? static_cast<int64_t>(n) * bounds_.padded : tokens);
    }
    tokens += lengths[n];
    longest = std::max(longest, lengths[n]);
  }
  // The end of the last sequence: what offsets of the sequences that round the batch repeat.
  const auto sequences = static_cast<int64_t>(kept.size());
  starts.push_back(kept.empty() ? 0 : starts.back() + kept.back());
  const bool dense = !bounded_ && rules_.dense_when_equal && AllEqual(lengths);
  int64_t batch = batch_, declared = max_length_;
  if (dense) {
    batch = sequences;
    declared = longest;
  } else if (!bounded_) {
    batch = rules_.round_batch ? RoundBatch(sequences) : std::max<int64_t>(sequences, 1);
    declared = rules_.round_length ? RoundLength(longest) : std::max<int64_t>(longest, 1);
  }
  kept.resize(static_cast<size_t>(batch), 0);
  starts.resize(static_cast<size_t>(batch) + 1, starts.back());

  std::vector<char> staging(staging_.size());
  std::memcpy(staging.data(), kept.data(), kept.size() * sizeof(int32_t));
  for (size_t c = 0; c < factors_.size(); ++c) {
    char* to = staging.data() + OffsetOf(static_cast<int>(c));
    for (size_t i = 0; i < starts.size(); ++i) {
      const int64_t offset = starts[i] * factors_[c];
      if (offset_type_ == DType::kI64) {
        std::memcpy(to + i * sizeof(int64_t), &offset, sizeof(int64_t));
      } else {
        const auto narrow = static_cast<int32_t>(offset);
        std::memcpy(to + i * sizeof(int32_t), &narrow, sizeof(int32_t));
      }
    }
  }
  if (device_.data() != nullptr) {
    // One upload, staged from pageable memory: CUDA has read it when the call returns.
    FLUVIAL_RETURN_IF_ERROR(
        Copy(stream, device_.data(), DeviceKind::kCuda, staging.data(), DeviceKind::kCpu, staging.size()));
    staging_ = std::move(staging);
  } else {
    std::memcpy(staging_.data(), staging.data(), staging.size());  // keeps the addresses
  }
  lengths_ = std::move(kept);
  starts_ = std::move(starts);
  batch_ = batch;
  max_length_ = declared;
  sequences_ = sequences;
  tokens_ = tokens;
  dense_ = dense;
  ++generation_;
  return Status::Ok();
}

std::vector<int64_t> RaggedPlan::offsets(Section section) const {
  std::vector<int64_t> out = starts_;
  for (int64_t& x : out) x *= factors_[copy_[static_cast<int>(section)]];
  return out;
}

const void* RaggedPlan::device_lengths() const { return device_.data() != nullptr ? device_.data() : staging_.data(); }

const void* RaggedPlan::device_offsets(Section section) const {
  return static_cast<const char*>(device_lengths()) + OffsetOf(copy_[static_cast<int>(section)]);
}

}  // namespace fluvial::ops::vision_attention
