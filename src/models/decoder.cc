// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "ops/elementwise/elementwise.h"

namespace fluvial::models {
namespace {

struct HeadScratch {
  TensorView rows, logits;
};

HeadScratch TakeHeadScratch(Scratch& s, const HeadWeights& w, int64_t rows, DType io) {
  HeadScratch out;
  out.rows = s.Take(io, {rows, w.lm_head.dim(1)});
  if (io != DType::kF32) out.logits = s.Take(io, {rows, w.lm_head.dim(0)});
  return out;
}

}  // namespace

TensorView WeightCopies::As(const TensorView& weight, DType dtype) {
  if (!weight.defined() || weight.dtype == dtype) return weight;
  const size_t bytes = static_cast<size_t>(weight.elements()) * SizeOf(dtype);
  copies_.emplace_back((bytes + 7) / 8);
  TensorView out = weight;
  out.data = copies_.back().data();
  out.dtype = dtype;
  for (int64_t i = 0; i < weight.elements(); ++i) {
    StoreFromDouble(out.data, dtype, i, LoadAsDouble(weight.data, weight.dtype, i));
  }
  return out;
}

void WeightCopies::Keep(std::vector<std::vector<uint64_t>> copies) {
  for (auto& copy : copies) copies_.push_back(std::move(copy));
}

Result<DType> ActivationType(const LoadOptions& options, const weights::ModelConfig& config,
                             const weights::Checkpoint& checkpoint) {
  DType io = options.dtype.value_or(config.dtype.value_or(DType::kBF16));
  if (!options.dtype && !config.dtype && !checkpoint.tensors().empty()) io = checkpoint.tensors()[0].entry.dtype;
  if (io == DType::kF32 || io == DType::kBF16 || io == DType::kF16) return io;
  return Status::InvalidArgument("a model cannot run in " + std::string(Name(io)) +
                                 ": use --dtype float32, bfloat16 or float16");
}

int64_t CountParameters(const weights::Checkpoint& checkpoint) {
  int64_t count = 0;
  for (const weights::CheckpointTensor& t : checkpoint.tensors()) {
    int64_t n = 1;
    for (const int64_t d : t.entry.shape) n *= d;
    count += n;
  }
  return count;
}

Status CheckStep(const Step& step, size_t layers) {
  const int64_t decode = step.decode == nullptr ? 0 : step.decode->tokens();
  const int64_t prefill = step.prefill == nullptr ? 0 : step.prefill->tokens();
  if (step.kv == nullptr || step.caches == nullptr || step.caches->size() != layers) {
    return Status::InvalidArgument("a step needs a KV plan and one cache per layer");
  }
  if (decode + prefill != step.tokens() || step.kv->tokens() != step.tokens()) {
    return Status::InvalidArgument("a step of " + std::to_string(step.tokens()) + " tokens has plans for " +
                                   std::to_string(decode) + " + " + std::to_string(prefill) + " and " +
                                   std::to_string(step.kv->tokens()));
  }
  if (step.decode != nullptr && step.decode->max_length() > 1) {
    return Status::InvalidArgument("decode sequences of a step have one token each");
  }
  return Status::Ok();
}

Status Norm(const BlockContext& c, ops::norm::Form form, const TensorView& weight, const TensorView& x,
            const TensorView& residual, const TensorView& y) {
  ops::norm::Args args;
  args.form = form;
  args.eps = c.eps;
  args.x = x;
  args.weight = weight;
  args.residual = residual;
  args.y = y;
  return ops::norm::Run(c.stream, args);
}

Result<size_t> HeadBytes(Operators& operators, const Step& step, const HeadWeights& w, DType io) {
  if (step.rows() == 0) return size_t{0};
  Scratch scratch;
  TakeHeadScratch(scratch, w, step.rows(), io);
  FLUVIAL_ASSIGN_OR_RETURN(const size_t linear, operators.LinearBytes(LinearProblem(step.rows(), w.lm_head, io)));
  return scratch.bytes() + Arena::Aligned(linear);
}

Status Head(const BlockContext& c, const HeadWeights& w, const TensorView& hidden) {
  const int64_t rows = c.step.rows();
  if (rows == 0) return Status::Ok();
  Scratch scratch(&c.arena);
  const HeadScratch t = TakeHeadScratch(scratch, w, rows, c.io);
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  FLUVIAL_RETURN_IF_ERROR(ops::elementwise::GatherRows(c.stream, hidden, c.step.logit_rows, t.rows));
  FLUVIAL_RETURN_IF_ERROR(Norm(c, w.form, w.norm, t.rows, {}, t.rows));
  // Logits are rounded to the model's type, then widened for the sampler.
  const TensorView logits = c.io == DType::kF32 ? c.step.logits : t.logits;
  FLUVIAL_RETURN_IF_ERROR(c.operators.Linear(c.stream, t.rows, w.lm_head, {}, logits, c.arena));
  if (c.io == DType::kF32) return Status::Ok();
  return ops::elementwise::Cast(c.stream, logits, c.step.logits);
}

TensorView TakeHead(weights::WeightReader& reader, const weights::ModelConfig& config, const TensorView& embed) {
  if (!config.tied_embeddings) return reader.Take("lm_head.weight", {config.vocab, config.hidden});
  if (reader.Has("lm_head.weight")) {
    LogWarning(reader.checkpoint().directory() + ": lm_head.weight is not used, the head is tied");
  }
  reader.IgnorePrefix("lm_head.");
  return embed;
}

}  // namespace fluvial::models
