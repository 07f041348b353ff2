// SPDX-License-Identifier: Apache-2.0
// RaggedPlan: how packed sequences are described to cuDNN - one offset per sequence and tensor, one length per
// sequence, a batch and a longest length that the graph declares. Computed once per image batch on the host, uploaded
// once, shared by all layers of a kind; full layers have one plan, window layers another. No cuDNN here: host code.
//
// Graphs are cached by their declared sizes, so these are rounded up: the batch to 8, 16, 32, 64 and then to multiples
// of 8 with sequences of length 0 whose offset repeats the last one, the longest length to 1 Ki ... 128 Ki and then to
// multiples of 128 Ki. Which of the rules a cuDNN version needs: RaggedRules::For and docs/ops/vision_attention.md.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "fluvial/status.h"
#include "ops/vision_attention/vision_attention.h"

namespace fluvial::ops::vision_attention {

/// Versions as cuDNN writes them: 9.19.0 = 91900; cudnn-frontend 1.32.0 = 13200.
struct RaggedRules {
  bool round_batch = true;   ///< to 8, 16, 32, 64, multiples of 8
  bool round_length = true;  ///< to 1 Ki ... 128 Ki, multiples of 128 Ki; lengths up to kExactLength stay exact
  bool drop_empty = true;    ///< sequences of no token are left out; those that round the batch come last
  bool token_units = false;  ///< offsets count tokens (the graph multiplies by the stride), not elements
  /// Sequences of one length are declared as a dense batch: no offsets, but a graph per batch and length.
  bool dense_when_equal = true;

  /// What the library asks for; 0 = unknown, the most careful rules.
  static RaggedRules For(int64_t cudnn_version, int64_t frontend_version);
  friend bool operator==(const RaggedRules&, const RaggedRules&) = default;
};

/// Windows have few lengths: up to here a declared length is the true one.
inline constexpr int64_t kExactLength = 128;

int64_t RoundBatch(int64_t sequences);
int64_t RoundLength(int64_t length);

/// Elements from one token to the next.
struct TokenStrides {
  int64_t q = 0, k = 0, v = 0, out = 0;
  int64_t lse = 0;  ///< 0: not wanted
  friend bool operator==(const TokenStrides&, const TokenStrides&) = default;
};
/// Of the tensors of a call.
TokenStrides TokenStridesOf(const Problem& problem, const Args& args);

enum class Section : uint8_t { kQ, kK, kV, kOut, kLse };
inline constexpr int kSections = 5;

/// Workspace that a ragged graph may need: a 128-byte descriptor per ragged tensor (q, k, v, out) and sequence, 16
/// bytes for a tile counter and 4 for a scalar. An upper bound found by measuring graphs, so a graph is asked first and
/// this stands only where none exists yet.
size_t WorkspaceBound(int64_t batch);

class RaggedPlan {
 public:
  struct Bounds {
    int64_t max_tokens = 0;  ///< rows of the tensors
    int32_t max_sequences = 0;
    int64_t max_length = 0;
    int64_t padded = 0;  ///< Problem::padded
  };

  /// Room for `bounds`, nothing uploaded yet. Its declared batch and length never change, so a captured CUDA graph may
  /// be replayed after every Refill.
  static Result<RaggedPlan> Create(Stream& stream, const Bounds& bounds, const TokenStrides& strides,
                                   const RaggedRules& rules);

  /// Just enough room for `lengths`, filled. Not for capture: the declared sizes follow the lengths.
  static Result<RaggedPlan> Make(Stream& stream, std::span<const int64_t> lengths, int64_t padded,
                                 const TokenStrides& strides, const RaggedRules& rules);

  /// New lengths; the generation grows by one. Errors (negative, beyond the bounds, the stream being captured) leave
  /// the plan as it was.
  Status Refill(Stream& stream, std::span<const int64_t> lengths);

  uint64_t generation() const { return generation_; }
  bool bounded() const { return bounded_; }           ///< from Create
  int64_t batch() const { return batch_; }            ///< declared, rounded; dense: the sequences
  int64_t max_length() const { return max_length_; }  ///< declared, rounded; dense: the length
  int64_t sequences() const { return sequences_; }    ///< that have tokens, or all with drop_empty off
  int64_t tokens() const { return tokens_; }
  bool dense() const { return dense_; }
  const RaggedRules& rules() const { return rules_; }
  const TokenStrides& strides() const { return strides_; }
  /// kI32, or kI64 when an offset within the bounds could leave 32 bits. Lengths are always i32.
  DType offset_type() const { return offset_type_; }

  /// What one step of a section's offsets counts, in elements: 1, or with token units the token stride.
  int64_t Multiplier(Section section) const { return rules_.token_units ? StrideOf(section) : 1; }

  // Host side, for tests and messages.
  std::span<const int32_t> lengths() const { return lengths_; }  ///< [batch]
  std::vector<int64_t> offsets(Section section) const;           ///< [batch + 1], elements or tokens

  // Device side (CPU plans: host memory), addresses stable over refills. Sections of equal stride share one copy.
  const void* device_lengths() const;
  const void* device_offsets(Section section) const;

 private:
  RaggedPlan() = default;
  int64_t StrideOf(Section section) const;
  size_t OffsetOf(int copy) const;
  Status Allocate(Stream& stream);
  Status Fill(Stream& stream, std::span<const int64_t> lengths);

  Bounds bounds_;
  TokenStrides strides_;
  RaggedRules rules_;
  bool bounded_ = false, dense_ = false;
  DType offset_type_ = DType::kI32;
  int64_t capacity_ = 0;  ///< sequences the buffers have room for
  int64_t batch_ = 0, max_length_ = 0, sequences_ = 0, tokens_ = 0;
  uint64_t generation_ = 0;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> starts_;        ///< [batch + 1] in tokens
  std::array<int, kSections> copy_{};  ///< which copy a section reads
  std::vector<int64_t> factors_;       ///< of each copy
  Buffer device_;
  std::vector<char> staging_;
};

}  // namespace fluvial::ops::vision_attention
