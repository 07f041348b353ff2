// SPDX-License-Identifier: Apache-2.0
// Batch: one step's packed tokens, plans and buffers, built from what the planner picked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine/planner.h"
#include "engine/sequence.h"
#include "fluvial/status.h"
#include "models/model.h"
#include "ops/common/sequence_plan.h"
#include "ops/paged_attention/kv_plan.h"

namespace fluvial::engine {

struct BatchLimits {
  int32_t sequences = 0;
  int64_t tokens = 0;  ///< of one step
  int64_t length = 0;  ///< of one sequence, cached tokens included
  int32_t page_size = 16;
};

/// Of Model::Encode.
struct FeatureShape {
  DType dtype = DType::kF32;
  int64_t levels = 1;
  int64_t width = 0;
};

class Batch {
 public:
  /// A sequence and how many of its pending tokens this step takes.
  struct Item {
    Sequence* sequence = nullptr;
    int64_t tokens = 0;
    bool prompt = false;  ///< of its prompt; false: a drawn token
  };
  /// A row of logits: those after token `position` of the item's sequence.
  struct LogitRow {
    size_t item = 0;
    int64_t position = 0;
  };

  /// `features`: shape of a picture's features as the model gives them, for views of their rows.
  static Result<Batch> Create(Stream& stream, const BatchLimits& limits, int64_t vocab,
                              const FeatureShape& features = {});

  /// A made-up step for sizing and for the choice of backends: sequences of `tokens` new ones after `context`.
  Status Assume(Stream& stream, int32_t sequences, int64_t tokens, int64_t context);

  /// Fills ids, positions and plans for what the planner picked; its tasks must be Sequences.
  Status Build(Stream& stream, const Plan& plan);

  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
  /// Tokens of prompts in this step.
  int64_t prompt_tokens() const { return prompt_tokens_; }
  std::span<const Item> items() const { return items_; }
  /// The step for Model::Forward; views stay valid until the next Build or Assume.
  models::Step Step(const std::vector<models::LayerCache>& caches);
  /// What the rows of logits belong to: the last token of items that have no more, and every token of a prompt whose
  /// log probabilities are wanted.
  std::span<const LogitRow> logit_uses() const { return logit_uses_; }
  const float* LogitsOfRow(size_t row) const { return logits_.data() + row * static_cast<size_t>(vocab_); }

 private:
  Batch() = default;
  Status Refill(Stream& stream, std::span<const int64_t> lengths, std::span<const int64_t> contexts,
                std::span<const int32_t> read_slots, std::span<const int32_t> write_slots,
                std::vector<std::vector<int32_t>> pages);

  void BuildPositions();
  void AddVision(const Sequence& s, int64_t begin, int64_t count, int64_t row);

  BatchLimits limits_;
  FeatureShape features_;
  int64_t vocab_ = 0;
  int32_t decode_count_ = 0;
  int32_t prefill_count_ = 0;
  int64_t prompt_tokens_ = 0;
  std::vector<Item> items_;  // decode first
  std::vector<LogitRow> logit_uses_;
  std::vector<int32_t> ids_, logit_rows_;
  std::vector<int64_t> positions_;  // [1, T], or [3, T] when a sequence has images
  int position_rows_ = 1;
  std::vector<models::VisionRows> vision_;
  std::vector<float> logits_;
  std::optional<ops::SequencePlan> decode_, prefill_;
  std::optional<ops::paged_attention::KvPlan> kv_;
};

}  // namespace fluvial::engine
