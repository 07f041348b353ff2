// SPDX-License-Identifier: Apache-2.0
#include "engine/batch.h"

#include <algorithm>
#include <utility>

namespace fluvial::engine {

Result<Batch> Batch::Create(Stream& stream, const BatchLimits& limits, int64_t vocab, const FeatureShape& features) {
  Batch b;
  b.features_ = features;
  b.limits_ = limits;
  b.vocab_ = vocab;
  ops::PlanBounds decode, prefill;
  decode.max_tokens = decode.max_sequences = limits.sequences;
  decode.max_length = 1;
  prefill.max_tokens = limits.tokens;
  prefill.max_sequences = limits.sequences;
  FLUVIAL_ASSIGN_OR_RETURN(b.decode_, ops::SequencePlan::Create(stream, decode));
  FLUVIAL_ASSIGN_OR_RETURN(b.prefill_, ops::SequencePlan::Create(stream, prefill));
  ops::paged_attention::KvBounds kv;
  kv.page_size = limits.page_size;
  kv.max_tokens = limits.tokens;
  kv.max_sequences = limits.sequences;
  kv.max_kv_length = limits.length;
  FLUVIAL_ASSIGN_OR_RETURN(b.kv_, ops::paged_attention::KvPlan::Create(stream, kv));
  b.ids_.reserve(static_cast<size_t>(limits.tokens));
  b.positions_.reserve(static_cast<size_t>(3 * limits.tokens));
  b.logits_.resize(static_cast<size_t>(limits.sequences) * static_cast<size_t>(vocab));
  return b;
}

Status Batch::Refill(Stream& stream, std::span<const int64_t> lengths, std::span<const int64_t> contexts,
                     std::span<const int32_t> read_slots, std::span<const int32_t> write_slots,
                     std::vector<std::vector<int32_t>> pages) {
  const size_t d = static_cast<size_t>(decode_count_);
  const auto part = [&](auto span, bool decode) {
    const auto sub = decode ? span.subspan(0, d) : span.subspan(d);
    return std::vector(sub.begin(), sub.end());
  };
  for (const bool decode : {true, false}) {
    ops::SequenceSpec spec;
    spec.lengths = part(lengths, decode);
    spec.read_slots = part(read_slots, decode);
    spec.write_slots = part(write_slots, decode);
    if (!spec.lengths.empty()) FLUVIAL_RETURN_IF_ERROR((decode ? decode_ : prefill_)->Refill(stream, spec));
  }
  ops::paged_attention::KvSpec kv;
  kv.lengths.assign(lengths.begin(), lengths.end());
  kv.contexts.assign(contexts.begin(), contexts.end());
  kv.pages = std::move(pages);
  return kv_->Refill(stream, kv);
}

Status Batch::Assume(Stream& stream, int32_t sequences, int64_t tokens, int64_t context) {
  const bool decode = tokens == 1 && context > 0;
  decode_count_ = decode ? sequences : 0;
  prefill_count_ = decode ? 0 : sequences;
  const size_t n = static_cast<size_t>(sequences);
  const std::vector<int64_t> lengths(n, tokens), contexts(n, context);
  std::vector<int32_t> read(n), write(n);
  std::vector<std::vector<int32_t>> pages(n);
  const int64_t per_sequence = (context + tokens + limits_.page_size - 1) / limits_.page_size;
  for (size_t i = 0; i < n; ++i) {
    read[i] = write[i] = static_cast<int32_t>(i) + 1;
    for (int64_t j = 0; j < per_sequence; ++j) {
      pages[i].push_back(static_cast<int32_t>(static_cast<int64_t>(i) * per_sequence + j));
    }
  }
  ids_.assign(n * static_cast<size_t>(tokens), 0);
  positions_.assign(ids_.size(), 0);
  position_rows_ = 1;
  vision_.clear();
  logit_rows_.assign(n, 0);
  return Refill(stream, lengths, contexts, read, write, std::move(pages));
}

void Batch::AddVision(const Sequence& s, int64_t begin, int64_t count, int64_t row) {
  for (const models::VisionPlan::Run& run : s.vision.runs) {
    const int64_t from = std::max(begin, run.begin), to = std::min(begin + count, run.begin + run.count);
    if (from >= to) continue;
    const Buffer& buffer = s.features[run.item];
    const int64_t bytes_of_row = features_.width * static_cast<int64_t>(SizeOf(features_.dtype));
    const int64_t tokens = static_cast<int64_t>(buffer.bytes()) / bytes_of_row / features_.levels;
    const int64_t first = run.first + from - run.begin;
    vision_.push_back({row + from - begin, TensorView(static_cast<char*>(buffer.data()) + first * bytes_of_row,
                                                      features_.dtype, {features_.levels, to - from, features_.width},
                                                      {tokens * features_.width, features_.width, 1})});
  }
}

Status Batch::Build(Stream& stream, const Plan& plan) {
  items_.clear();
  ids_.clear();
  vision_.clear();
  logit_rows_.clear();
  logit_uses_.clear();
  prompt_tokens_ = 0;
  decode_count_ = prefill_count_ = 0;
  std::vector<int64_t> lengths, contexts;
  std::vector<int32_t> read, write;
  std::vector<std::vector<int32_t>> pages;
  for (const Plan::Item& item : plan.items) {
    auto& s = static_cast<Sequence&>(*item.task);
    const int64_t end = s.done + item.tokens;
    // The first prompt token has no probability; after a preemption what was reported is not reported again.
    const int64_t rows_from = s.all_rows && !item.decode
                                  ? std::max<int64_t>(static_cast<int64_t>(s.completion.prompt_logprobs.size()) - 1, 0)
                                  : end;
    AddVision(s, s.done, item.tokens, static_cast<int64_t>(ids_.size()));
    for (int64_t t = s.done; t < end; ++t) {
      if ((t >= rows_from && t + 1 < s.prompt->size()) || t + 1 == s.size()) {
        logit_uses_.push_back({items_.size(), t});
        logit_rows_.push_back(static_cast<int32_t>(ids_.size()));
      }
      ids_.push_back(s.ids[static_cast<size_t>(t)]);
    }
    lengths.push_back(item.tokens);
    contexts.push_back(s.done);
    read.push_back(s.read_slot);
    write.push_back(s.write_slot);
    pages.push_back(s.pages);
    items_.push_back({&s, item.tokens, !item.decode});
    ++(item.decode ? decode_count_ : prefill_count_);
    if (!item.decode) prompt_tokens_ += item.tokens;
  }
  BuildPositions();
  const size_t logits = logit_rows_.size() * static_cast<size_t>(vocab_);
  if (logits_.size() < logits) logits_.resize(logits);
  return Refill(stream, lengths, contexts, read, write, std::move(pages));
}

void Batch::BuildPositions() {
  position_rows_ =
      std::any_of(items_.begin(), items_.end(), [](const Item& i) { return !i.sequence->vision.empty(); }) ? 3 : 1;
  positions_.clear();
  for (int row = 0; row < position_rows_; ++row) {
    for (const Item& item : items_) {
      const Sequence& s = *item.sequence;
      const int64_t planned = static_cast<int64_t>(s.vision.positions.size()) / 3;
      for (int64_t t = s.done; t < s.done + item.tokens; ++t) {
        positions_.push_back(t < planned ? s.vision.positions[static_cast<size_t>(row * planned + t)]
                                         : t + s.vision.delta);
      }
    }
  }
}

models::Step Batch::Step(const std::vector<models::LayerCache>& caches) {
  models::Step step;
  step.ids = TensorView(ids_.data(), DType::kI32, {tokens()});
  step.positions = TensorView(positions_.data(), DType::kI64, {position_rows_, tokens()});
  step.vision = vision_.empty() ? nullptr : &vision_;
  step.decode = decode_count_ > 0 ? &*decode_ : nullptr;
  step.prefill = prefill_count_ > 0 ? &*prefill_ : nullptr;
  step.kv = &*kv_;
  step.caches = &caches;
  const int64_t rows = static_cast<int64_t>(logit_rows_.size());
  if (rows > 0) {
    step.logit_rows = TensorView(logit_rows_.data(), DType::kI32, {rows});
    step.logits = TensorView(logits_.data(), DType::kF32, {rows, vocab_});
  }
  return step;
}

}  // namespace fluvial::engine
