// SPDX-License-Identifier: Apache-2.0
#include "models/vision_tower.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "models/blocks.h"
#include "ops/elementwise/elementwise.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"

namespace fluvial::models {
namespace {

namespace ew = ops::elementwise;
namespace va = ops::vision_attention;

constexpr float kNormEps = 1e-6f;  // of the architecture, not of the config

/// Rows that go through the widest layers at once: bounds scratch for large pictures.
constexpr int64_t kSlab = 2048;

LinearWeights TakeLinear(weights::WeightReader& r, const std::string& name, int64_t out, int64_t in, bool bias = true) {
  LinearWeights w;
  w.weight = r.Take(name + ".weight", {out, in});
  if (bias) w.bias = r.Take(name + ".bias", {out});
  return w;
}

NormWeights TakeNorm(weights::WeightReader& r, const std::string& name, int64_t n, bool bias) {
  NormWeights w;
  w.weight = r.Take(name + ".weight", {n});
  if (bias) w.bias = r.Take(name + ".bias", {n});
  return w;
}

Result<size_t> LinearBytes(Operators& operators, int64_t rows, const LinearWeights& w, DType io) {
  ops::gemm::Problem p = LinearProblem(rows, w.weight, io, w.bias.defined());
  if (w.bias.defined()) p.bias = w.bias.dtype;
  FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, operators.LinearBytes(p));
  return Arena::Aligned(bytes);
}

}  // namespace

/// One call of Encode.
struct VisionTower::Run {
  Stream& stream;
  Operators& operators;
  Arena& arena;
  const VisionLayout& layout;
  const ops::SequencePlan* frames = nullptr;
  const ops::SequencePlan* windows = nullptr;
  TensorView x = {};       ///< [N, hidden], the residual stream
  TensorView block = {};   ///< [N, hidden]
  TensorView normed = {};  ///< [N, hidden]
  TensorView cos = {}, sin = {};

  Status Linear(const TensorView& in, const LinearWeights& w, const TensorView& out) {
    return operators.Linear(stream, in, w.weight, w.bias, out, arena);
  }
};

VisionTower::VisionTower(weights::WeightReader& reader, const std::string& prefix, const weights::ModelConfig& config,
                         DType io)
    : config_(*config.vision), io_(io) {
  const weights::VisionConfig& c = config_;
  const int64_t merged = c.hidden * c.merge * c.merge;
  rules_.image_token = static_cast<int32_t>(config.image_token);
  rules_.video_token = static_cast<int32_t>(config.video_token);
  rules_.merge = c.merge;
  rules_.patch_values = c.in_channels * c.temporal_patch * c.patch * c.patch;
  rules_.split_frames = !c.windowed;
  rules_.tokens_per_second = c.tokens_per_second;

  const bool layer_norm = !c.windowed;
  patch_.weight =
      reader.Take(prefix + "patch_embed.proj.weight", {c.hidden, c.in_channels, c.temporal_patch, c.patch, c.patch});
  patch_.weight = TensorView(patch_.weight.data, patch_.weight.dtype, {c.hidden, rules_.patch_values});
  if (layer_norm) {
    patch_.bias = reader.Take(prefix + "patch_embed.proj.bias", {c.hidden});
    table_ = reader.Take(prefix + "pos_embed.weight", {c.positions, c.hidden});
    if (table_.defined() && table_.dtype != DType::kF32) {
      table_copy_.resize(static_cast<size_t>(table_.elements()));
      for (size_t i = 0; i < table_copy_.size(); ++i) {
        table_copy_[i] = static_cast<float>(LoadAsDouble(table_.data, table_.dtype, static_cast<int64_t>(i)));
      }
    }
  }
  for (int64_t i = 0; i < c.depth; ++i) {
    const std::string p = prefix + "blocks." + std::to_string(i) + ".";
    VisionBlockWeights w;
    w.norm1 = TakeNorm(reader, p + "norm1", c.hidden, layer_norm);
    w.norm2 = TakeNorm(reader, p + "norm2", c.hidden, layer_norm);
    w.qkv = TakeLinear(reader, p + "attn.qkv", 3 * c.hidden, c.hidden);
    w.proj = TakeLinear(reader, p + "attn.proj", c.hidden, c.hidden);
    if (c.windowed) {
      w.gate = TakeLinear(reader, p + "mlp.gate_proj", c.intermediate, c.hidden);
      w.up = TakeLinear(reader, p + "mlp.up_proj", c.intermediate, c.hidden);
      w.down = TakeLinear(reader, p + "mlp.down_proj", c.hidden, c.intermediate);
    } else {
      w.up = TakeLinear(reader, p + "mlp.linear_fc1", c.intermediate, c.hidden);
      w.down = TakeLinear(reader, p + "mlp.linear_fc2", c.hidden, c.intermediate);
    }
    blocks_.push_back(w);
  }
  const auto take_merger = [&](const std::string& p, bool after) {
    MergerWeights w;
    w.after = after;
    w.norm = TakeNorm(reader, p + (c.windowed ? "ln_q" : "norm"), after ? merged : c.hidden, layer_norm);
    w.up = TakeLinear(reader, p + (c.windowed ? "mlp.0" : "linear_fc1"), merged, merged);
    w.down = TakeLinear(reader, p + (c.windowed ? "mlp.2" : "linear_fc2"), c.out_hidden, merged);
    return w;
  };
  merger_ = take_merger(prefix + "merger.", false);
  for (size_t i = 0; i < c.deepstack.size(); ++i) {
    deepstack_.push_back(take_merger(prefix + "deepstack_merger_list." + std::to_string(i) + ".", true));
  }
}

bool VisionTower::IsFull(int64_t block) const {
  return !config_.windowed ||
         std::find(config_.full_blocks.begin(), config_.full_blocks.end(), block) != config_.full_blocks.end();
}

va::Problem VisionTower::AttentionProblem(std::span<const int64_t> lengths) const {
  va::Problem p;
  p.heads = static_cast<int32_t>(config_.heads);
  p.d = static_cast<int32_t>(config_.hidden / config_.heads);
  p.io = io_;
  p.scale = va::DefaultScale(p.d);
  va::SetLengths(p, lengths);
  // q, k and v are columns of one buffer from the arena: their addresses differ by multiples of a row of heads.
  const int64_t pitch = config_.hidden * static_cast<int64_t>(SizeOf(io_));
  const int64_t head = p.d * static_cast<int64_t>(SizeOf(io_));
  p.alignment = 16;
  while (pitch % p.alignment != 0 || head % p.alignment != 0) p.alignment /= 2;
  return p;
}

Result<size_t> VisionTower::WorkspaceBytes(Operators& operators, std::span<const VisionInput> items) const {
  const VisionLayout layout = MakeVisionLayout(config_, items);
  const int64_t n = layout.patches, slab = std::min(n, kSlab), h = config_.hidden;
  const int64_t merged = h * config_.merge * config_.merge, cells = n / (config_.merge * config_.merge);
  Scratch whole, embed, attention, mlp, merge;
  for (int i = 0; i < 3; ++i) whole.Take(io_, {n, h});
  for (int i = 0; i < 2; ++i) whole.Take(DType::kF32, {n, h / config_.heads / 2});
  if (io_ != DType::kF32) embed.Take(io_, {slab, rules_.patch_values});
  attention.Take(io_, {n, 3 * h});
  attention.Take(io_, {n, h});
  mlp.Take(io_, {slab, config_.intermediate});
  if (config_.windowed) mlp.Take(io_, {slab, config_.intermediate});
  const int64_t cell_slab = std::min(cells, kSlab);
  merge.Take(io_, {cell_slab, merged});
  if (config_.windowed) merge.Take(io_, {cells, config_.out_hidden});

  size_t backend = 0;
  for (const auto* lengths : {&layout.frames, &layout.windows}) {
    if (lengths->empty()) continue;
    const va::Problem problem = AttentionProblem(*lengths);
    FLUVIAL_ASSIGN_OR_RETURN(const auto* b, operators.Choose(problem));
    backend = std::max(backend, Arena::Aligned(b->workspace_bytes(problem, operators.device())));
  }
  size_t linears = 0;
  const auto count = [&](int64_t rows, const LinearWeights& w) -> Status {
    FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, LinearBytes(operators, rows, w, io_));
    linears = std::max(linears, bytes);
    return Status::Ok();
  };
  // The last slab may be any size.
  FLUVIAL_RETURN_IF_ERROR(count(slab, patch_));
  if (!blocks_.empty()) {
    FLUVIAL_RETURN_IF_ERROR(count(n, blocks_[0].qkv));
    FLUVIAL_RETURN_IF_ERROR(count(n, blocks_[0].proj));
    FLUVIAL_RETURN_IF_ERROR(count(slab, blocks_[0].up));
    FLUVIAL_RETURN_IF_ERROR(count(slab, blocks_[0].down));
  }
  FLUVIAL_RETURN_IF_ERROR(count(cell_slab, merger_.up));
  FLUVIAL_RETURN_IF_ERROR(count(cell_slab, merger_.down));
  return whole.bytes() + std::max({embed.bytes() + linears, attention.bytes() + std::max(linears, backend),
                                   mlp.bytes() + linears, merge.bytes() + linears});
}

Status VisionTower::Norm(Run& run, const NormWeights& w, const TensorView& x, const TensorView& residual,
                         const TensorView& y) const {
  ops::norm::Args args;
  args.form = config_.windowed ? ops::norm::Form::kRms : ops::norm::Form::kLayer;
  args.eps = kNormEps;
  args.x = x;
  args.weight = w.weight;
  args.bias = w.bias;
  args.residual = residual;
  args.y = y;
  return ops::norm::Run(run.stream, args);
}

Status VisionTower::Embed(Run& run, std::span<const VisionInput> items) const {
  // A windowed tower reorders what it embeds; the embedding itself is per patch.
  const TensorView& to = config_.windowed ? run.block : run.x;
  int64_t row = 0;
  for (const VisionInput& item : items) {
    // The tower reads only; views have no const form.
    TensorView pixels(const_cast<float*>(item.pixels->data()), DType::kF32, {item.patches(), rules_.patch_values});
    for (int64_t begin = 0; begin < item.patches(); begin += kSlab) {
      const int64_t count = std::min(kSlab, item.patches() - begin);
      Scratch scratch(&run.arena);
      TensorView in = Rows(pixels, begin, count);
      if (io_ != DType::kF32) {
        const TensorView rounded = scratch.Take(io_, {count, rules_.patch_values});
        FLUVIAL_RETURN_IF_ERROR(scratch.status());
        FLUVIAL_RETURN_IF_ERROR(ew::Cast(run.stream, in, rounded));
        in = rounded;
      }
      FLUVIAL_RETURN_IF_ERROR(run.Linear(in, patch_, Rows(to, row + begin, count)));
    }
    row += item.patches();
  }
  if (!config_.windowed) return AddPositions(run, items);
  const int64_t unit = config_.merge * config_.merge;
  const auto cells = [&](const TensorView& t) {
    return TensorView(t.data, t.dtype, {t.dim(0) / unit, t.dim(1) * unit});
  };
  const TensorView order(const_cast<int32_t*>(run.layout.cells.data()), DType::kI32,
                         {static_cast<int64_t>(run.layout.cells.size())});
  return ew::GatherRows(run.stream, cells(run.block), order, cells(run.x));
}

Status VisionTower::AddPositions(Run& run, std::span<const VisionInput> items) const {
  const int64_t side = static_cast<int64_t>(std::sqrt(static_cast<double>(config_.positions)));
  const int64_t h = config_.hidden;
  const float* table = table_copy_.empty() ? table_.as<float>() : table_copy_.data();
  int64_t first = 0;
  for (const VisionInput& item : items) {
    const int64_t frame = item.grid[1] * item.grid[2];
    run.stream.pool().ParallelFor(frame, [&](int64_t i, int) {
      const TablePlace y = PlaceOnTable(run.layout.places[static_cast<size_t>(first + i)], item.grid[1], side);
      const TablePlace x =
          PlaceOnTable(run.layout.places[static_cast<size_t>(run.layout.patches + first + i)], item.grid[2], side);
      const int64_t rows[] = {y.low * side + x.low, y.low * side + x.high, y.high * side + x.low,
                              y.high * side + x.high};
      const float weights[] = {y.low_weight * x.low_weight, y.low_weight * x.high_weight, y.high_weight * x.low_weight,
                               y.high_weight * x.high_weight};
      constexpr int64_t kColumns = 64;
      for (int64_t begin = 0; begin < h; begin += kColumns) {
        const int64_t count = std::min(kColumns, h - begin);
        float sums[kColumns] = {};
        for (int k = 0; k < 4; ++k) {
          const float* row = table + rows[k] * h + begin;
          for (int64_t c = 0; c < count; ++c) sums[c] += row[c] * weights[k];
        }
        for (int64_t g = 0; g < item.grid[0]; ++g) {
          const int64_t to = (first + g * frame + i) * h + begin;
          for (int64_t c = 0; c < count; ++c)
            StoreFromDouble(run.block.data, io_, to + c, static_cast<double>(sums[c]));
        }
      }
    });
    first += item.patches();
  }
  return ew::Add(run.stream, run.x, run.block, run.x);
}

Status VisionTower::Attention(Run& run, const VisionBlockWeights& w, bool full) const {
  const int64_t h = config_.hidden, heads = config_.heads, d = h / heads;
  Scratch scratch(&run.arena);
  const TensorView qkv = scratch.Take(io_, {run.layout.patches, 3 * h});
  const TensorView mixed = scratch.Take(io_, {run.layout.patches, h});
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  FLUVIAL_RETURN_IF_ERROR(run.Linear(run.normed, w.qkv, qkv));
  va::Args args;
  args.q = Heads(Columns(qkv, 0, h), heads, d);
  args.k = Heads(Columns(qkv, h, h), heads, d);
  args.v = Heads(Columns(qkv, 2 * h, h), heads, d);
  args.out = Heads(mixed, heads, d);
  args.plan = full ? run.frames : run.windows;
  for (const TensorView* t : {&args.q, &args.k}) {
    FLUVIAL_RETURN_IF_ERROR(ops::rope::Apply(run.stream, *t, run.cos, run.sin, ops::rope::Rounding::kFp32, *t));
  }
  const va::Problem problem = AttentionProblem(full ? run.layout.frames : run.layout.windows);
  FLUVIAL_ASSIGN_OR_RETURN(const auto* backend, run.operators.Choose(problem));
  {
    const size_t bytes = backend->workspace_bytes(problem, run.operators.device()), mark = run.arena.used();
    FLUVIAL_ASSIGN_OR_RETURN(void* workspace, run.arena.Take(bytes));
    const Status status = backend->run(run.stream, problem, args, {workspace, bytes});
    run.arena.Rewind(mark);
    FLUVIAL_RETURN_IF_ERROR(status);
  }
  return run.Linear(mixed, w.proj, run.block);
}

Status VisionTower::Mlp(Run& run, const VisionBlockWeights& w) const {
  for (int64_t begin = 0; begin < run.layout.patches; begin += kSlab) {
    const int64_t count = std::min(kSlab, run.layout.patches - begin);
    Scratch scratch(&run.arena);
    const TensorView in = Rows(run.normed, begin, count), out = Rows(run.block, begin, count);
    const TensorView wide = scratch.Take(io_, {count, config_.intermediate});
    ew::GluArgs glu;
    glu.up = glu.y = wide;
    if (config_.windowed) glu.gate = scratch.Take(io_, {count, config_.intermediate});
    FLUVIAL_RETURN_IF_ERROR(scratch.status());
    FLUVIAL_RETURN_IF_ERROR(run.Linear(in, w.up, wide));
    if (config_.windowed) {
      FLUVIAL_RETURN_IF_ERROR(run.Linear(in, w.gate, glu.gate));
      FLUVIAL_RETURN_IF_ERROR(ew::Glu(run.stream, glu));
    } else {
      FLUVIAL_RETURN_IF_ERROR(ew::Apply(run.stream, ew::Function::kGeluTanh, wide, wide));
    }
    FLUVIAL_RETURN_IF_ERROR(run.Linear(wide, w.down, out));
  }
  return Status::Ok();
}

Status VisionTower::Merge(Run& run, const MergerWeights& w, const TensorView& x, const TensorView& features) const {
  const int64_t unit = config_.merge * config_.merge, merged = unit * config_.hidden;
  const int64_t cells = run.layout.patches / unit;
  const auto merge = [&](const TensorView& t) { return TensorView(t.data, t.dtype, {cells, merged}); };
  const TensorView in = merge(run.normed);
  FLUVIAL_RETURN_IF_ERROR(w.after ? Norm(run, w.norm, merge(x), {}, in) : Norm(run, w.norm, x, {}, run.normed));
  Scratch scratch(&run.arena);
  // A windowed tower's features are in window order and go back to the picture's.
  const TensorView out = config_.windowed ? scratch.Take(io_, {cells, config_.out_hidden}) : features;
  const TensorView slab = scratch.Take(io_, {std::min(cells, kSlab), merged});
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  for (int64_t begin = 0; begin < cells; begin += kSlab) {
    const int64_t count = std::min(kSlab, cells - begin);
    const TensorView wide = Rows(slab, 0, count);
    FLUVIAL_RETURN_IF_ERROR(run.Linear(Rows(in, begin, count), w.up, wide));
    FLUVIAL_RETURN_IF_ERROR(ew::Apply(run.stream, ew::Function::kGelu, wide, wide));
    FLUVIAL_RETURN_IF_ERROR(run.Linear(wide, w.down, Rows(out, begin, count)));
  }
  if (!config_.windowed) return Status::Ok();
  const TensorView order(const_cast<int32_t*>(run.layout.cells.data()), DType::kI32, {cells});
  return ew::ScatterRows(run.stream, out, order, features);
}

Status VisionTower::Encode(Stream& stream, Operators& operators, std::span<const VisionInput> items,
                           const TensorView& features, Arena& arena) const {
  if (items.empty()) return Status::Ok();
  const VisionLayout layout = MakeVisionLayout(config_, items);
  const int64_t n = layout.patches, h = config_.hidden;
  std::optional<ops::SequencePlan> plans[2];
  for (int i = 0; i < 2; ++i) {
    ops::SequenceSpec spec;
    spec.lengths = i == 0 ? layout.frames : layout.windows;
    if (spec.lengths.empty()) continue;
    FLUVIAL_ASSIGN_OR_RETURN(plans[i], ops::SequencePlan::Make(stream, spec));
  }
  Scratch scratch(&arena);
  Run run{stream, operators, arena, layout};
  run.frames = plans[0] ? &*plans[0] : nullptr;
  run.windows = plans[1] ? &*plans[1] : nullptr;
  for (TensorView* t : {&run.x, &run.block, &run.normed}) *t = scratch.Take(io_, {n, h});
  for (TensorView* t : {&run.cos, &run.sin}) *t = scratch.Take(DType::kF32, {n, h / config_.heads / 2});
  FLUVIAL_RETURN_IF_ERROR(scratch.status());

  ops::rope::Spec rope;
  rope.kind = ops::rope::Kind::kAxial;
  rope.dim = static_cast<int32_t>(h / config_.heads);
  rope.theta = config_.rope_theta;
  const TensorView places(const_cast<int64_t*>(layout.places.data()), DType::kI64, {2, n});
  FLUVIAL_RETURN_IF_ERROR(ops::rope::Tables(stream, rope, places, run.cos, run.sin));
  FLUVIAL_RETURN_IF_ERROR(Embed(run, items));

  const auto level = [&](int64_t i) {
    const int64_t tokens = n / (config_.merge * config_.merge);
    const size_t offset = static_cast<size_t>(i * tokens * config_.out_hidden) * SizeOf(io_);
    return TensorView(static_cast<char*>(features.data) + offset, io_, {tokens, config_.out_hidden});
  };
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const VisionBlockWeights& w = blocks_[i];
    FLUVIAL_RETURN_IF_ERROR(Norm(run, w.norm1, run.x, {}, run.normed));
    FLUVIAL_RETURN_IF_ERROR(Attention(run, w, IsFull(static_cast<int64_t>(i))));
    FLUVIAL_RETURN_IF_ERROR(Norm(run, w.norm2, run.block, run.x, run.normed));
    FLUVIAL_RETURN_IF_ERROR(Mlp(run, w));
    FLUVIAL_RETURN_IF_ERROR(ew::Add(stream, run.x, run.block, run.x));
    for (size_t k = 0; k < deepstack_.size(); ++k) {
      if (config_.deepstack[k] != static_cast<int64_t>(i)) continue;
      FLUVIAL_RETURN_IF_ERROR(Merge(run, deepstack_[k], run.x, level(static_cast<int64_t>(k) + 1)));
    }
  }
  return Merge(run, merger_, run.x, level(0));
}

}  // namespace fluvial::models
