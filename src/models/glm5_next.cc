// SPDX-License-Identifier: Apache-2.0
#include "models/glm5_next.h"

#include <algorithm>
#include <utility>

#include "models/block_parts.h"
#include "models/kda_model.h"
#include "ops/elementwise/elementwise.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/pool_index/pool_index.h"

namespace fluvial::models {
namespace {

namespace hc = ops::hyper_connection;
namespace pool_index = ops::pool_index;
using weights::LayerType;

constexpr auto kRms = ops::norm::Form::kRms;
constexpr float kIndexNormEps = 1e-6f;  // a constant of the architecture, not of the config

/// One site of the residual streams: before the mixer, before the feed-forward part.
struct HyperWeights {
  TensorView fn;     ///< [(2+S) S, S*H]
  TensorView base;   ///< fp32 [(2+S) S]
  TensorView scale;  ///< fp32 [3]
};

struct IndexerWeights {
  TensorView q;               ///< [heads*dim, query_rank]
  TensorView k;               ///< [dim, H]
  TensorView k_norm, k_bias;  ///< [dim], layer norm
  TensorView gate;            ///< [dim, H]
  TensorView weights;         ///< [heads, H]
  TensorView ape;             ///< fp32 [pool, dim]
};

/// What a layer has besides KdaLayer.
struct GlmLayer {
  HyperWeights mixer, feed_forward;
  bool indexes = false;  ///< latent attention with an indexer of its own
  IndexerWeights indexer;
};

class Glm5Next : public KdaModel {
 public:
  using KdaModel::KdaModel;

  Status Load(const LoadOptions& options);
  Result<size_t> WorkspaceBytes(const Step& step) override;
  Status Forward(Stream& stream, const Step& step, Arena& arena) override;

 private:
  /// Tensors of a whole step.
  struct StepScratch {
    TensorView streams, x, block, projected, post, mix, queries, selected, counts;
  };
  struct IndexScratch {
    TensorView q, rows, weights;
  };

  StepScratch Take(Scratch& s, const Step& step) const;
  IndexScratch TakeIndex(Scratch& s, int64_t tokens) const;
  pool_index::Problem IndexProblem(const Step& step) const;
  /// Most keys listed for a query of this step; 0 while every visible token is seen anyway.
  int32_t Selected(const Step& step) const;
  HyperWeights LoadHyper(weights::WeightReader& reader, const std::string& prefix, const char* released,
                         const char* module);
  void LoadIndexer(weights::WeightReader& reader, const std::string& prefix, IndexerWeights& w);
  Result<size_t> IndexBytes(const Step& step, const IndexerWeights& w);
  /// Appends the indexer's rows to the cache and, when `select`, fills t.selected and t.counts.
  Status Index(const BlockContext& c, const IndexerWeights& w, const LayerCache& cache, bool select,
               const StepScratch& t);
  /// x = the block's input, normalised; post and mix wait for Expand.
  Status Enter(const BlockContext& c, const HyperWeights& w, const TensorView& norm, const StepScratch& t);

  hc::Spec hyper_;
  std::vector<GlmLayer> extra_;
};

HyperWeights Glm5Next::LoadHyper(weights::WeightReader& reader, const std::string& prefix, const char* released,
                                 const char* module) {
  const std::string p = reader.Has(prefix + module + ".fn") ? prefix + module + "." : prefix + released + "_";
  HyperWeights w;
  w.fn = reader.Take(p + "fn", {hyper_.weights(), hyper_.streams * config_.hidden});
  w.base = copies_.As(reader.Take(p + "base", {hyper_.weights()}), DType::kF32);
  w.scale = copies_.As(reader.Take(p + "scale", {3}), DType::kF32);
  return w;
}

void Glm5Next::LoadIndexer(weights::WeightReader& reader, const std::string& p, IndexerWeights& w) {
  const weights::IndexerConfig& x = config_.indexer;
  w.q = reader.Take(p + "wq_b.weight", {x.heads * x.dim, mla_.query_rank});
  w.k = reader.Take(p + "wk.weight", {x.dim, config_.hidden});
  w.k_norm = reader.Take(p + "k_norm.weight", {x.dim});
  w.k_bias = reader.Take(p + "k_norm.bias", {x.dim});
  w.weights = reader.Take(p + "weights_proj.weight", {x.heads, config_.hidden});
  w.gate = reader.Take(p + "index_kpool_compress_gate", {x.dim, config_.hidden});
  w.ape = copies_.As(reader.Take(p + "index_kpool_compress_ape", {x.pool, x.dim}), DType::kF32);
}

Status Glm5Next::Load(const LoadOptions& options) {
  hyper_.streams = static_cast<int32_t>(config_.hyper.streams);
  hyper_.norm_eps = static_cast<float>(config_.norm_eps);
  hyper_.eps = static_cast<float>(config_.hyper.eps);
  hyper_.iterations = static_cast<int32_t>(config_.hyper.iterations);
  if (hyper_.streams > hc::kMaxStreams) {
    return Status::UnusableModel(checkpoint_.directory() + "/config.json: hc_mult is " +
                                 std::to_string(hyper_.streams) + "; at most " + std::to_string(hc::kMaxStreams) +
                                 " residual streams are supported");
  }
  weights::WeightReader reader(checkpoint_);
  const std::string nested = "model.language_model.";
  Naming naming;
  naming.root = reader.Has(nested + "embed_tokens.weight") ? nested : "model.";
  naming.conv_in_fp32 = true;
  naming.moe = "mlp.";
  FLUVIAL_RETURN_IF_ERROR(LoadShared(reader, naming));
  reader.IgnorePrefix("model.visual.");
  extra_.resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string prefix = naming.root + "layers." + std::to_string(i) + ".";
    extra_[i].mixer = LoadHyper(reader, prefix, "hc_attn", "attn_hc");
    extra_[i].feed_forward = LoadHyper(reader, prefix, "hc_ffn", "ffn_hc");
    extra_[i].indexes = layers_[i].type == LayerType::kFullAttention && !config_.indexer.shared[i];
    if (extra_[i].indexes) LoadIndexer(reader, prefix + "self_attn.indexer.", extra_[i].indexer);
  }
  FLUVIAL_RETURN_IF_ERROR(FinishLoading(reader, options));
  // The second pages of a layer with an indexer hold its key and gate.
  for (size_t i = 0; i < extra_.size(); ++i) {
    if (extra_[i].indexes) cache_spec_.layers[i].d_v = static_cast<int32_t>(2 * config_.indexer.dim);
  }
  return Status::Ok();
}

pool_index::Problem Glm5Next::IndexProblem(const Step& step) const {
  const weights::IndexerConfig& x = config_.indexer;
  pool_index::Problem p;
  p.heads = static_cast<int32_t>(x.heads);
  p.dim = static_cast<int32_t>(x.dim);
  p.pool = static_cast<int32_t>(x.pool);
  p.keep = static_cast<int32_t>(x.topk / x.pool);
  p.page_size = step.kv->page_size();
  p.io = io_;
  pool_index::SetLengths(p, *step.kv);
  return p;
}

int32_t Glm5Next::Selected(const Step& step) const {
  const pool_index::Problem p = IndexProblem(step);
  return p.max_kv_length / p.pool <= p.keep ? 0 : p.most();
}

Glm5Next::StepScratch Glm5Next::Take(Scratch& s, const Step& step) const {
  const int64_t t = step.tokens(), h = config_.hidden;
  StepScratch out;
  out.streams = s.Take(io_, {t, hyper_.streams * h});
  out.x = s.Take(io_, {t, h});
  out.block = s.Take(io_, {t, h});
  out.projected = s.Take(DType::kF32, {t, hyper_.weights()});
  out.post = s.Take(DType::kF32, {t, hyper_.streams});
  out.mix = s.Take(DType::kF32, {t, int64_t{hyper_.streams} * hyper_.streams});
  out.queries = s.Take(io_, {t, mla_.query_rank});
  if (const int32_t selected = Selected(step); selected > 0) {
    out.selected = s.Take(DType::kI32, {t, selected});
    out.counts = s.Take(DType::kI32, {t});
  }
  return out;
}

Glm5Next::IndexScratch Glm5Next::TakeIndex(Scratch& s, int64_t t) const {
  const weights::IndexerConfig& x = config_.indexer;
  return {s.Take(io_, {t, x.heads * x.dim}), s.Take(io_, {t, 2 * x.dim}), s.Take(io_, {t, x.heads})};
}

Result<size_t> Glm5Next::IndexBytes(const Step& step, const IndexerWeights& w) {
  Scratch scratch;
  TakeIndex(scratch, step.tokens());
  FLUVIAL_ASSIGN_OR_RETURN(size_t most,
                           LinearsBytes(operators_, step.tokens(), io_, {&w.q, &w.k, &w.gate, &w.weights}));
  if (Selected(step) > 0) {
    const auto problem = IndexProblem(step);
    FLUVIAL_ASSIGN_OR_RETURN(const auto* backend, operators_.Choose(problem));
    most = std::max(most, Arena::Aligned(backend->workspace_bytes(problem, operators_.device())));
  }
  return scratch.bytes() + most;
}

Result<size_t> Glm5Next::WorkspaceBytes(const Step& step) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, layers_.size()));
  Scratch whole;
  Take(whole, step);
  FLUVIAL_ASSIGN_OR_RETURN(size_t most, HeadBytes(operators_, step, head_, io_));
  const auto at_least = [&](const Result<size_t>& bytes) -> Status {
    if (!bytes.ok()) return bytes.status();
    most = std::max(most, *bytes);
    return Status::Ok();
  };
  // Layers of one kind have equal shapes.
  bool seen_mixer[2] = {}, seen_mlp[2] = {}, seen_indexer = false;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const KdaLayer& layer = layers_[i];
    if (i == 0) {
      ops::gemm::Problem fn = LinearProblem(step.tokens(), extra_[i].mixer.fn, io_);
      fn.y = DType::kF32;
      FLUVIAL_RETURN_IF_ERROR(at_least(operators_.LinearBytes(fn)));
    }
    if (!std::exchange(seen_mixer[layer.type == LayerType::kFullAttention], true)) {
      FLUVIAL_RETURN_IF_ERROR(at_least(MixerBytes(step, layer, Selected(step))));
    }
    if (extra_[i].indexes && !std::exchange(seen_indexer, true)) {
      FLUVIAL_RETURN_IF_ERROR(at_least(IndexBytes(step, extra_[i].indexer)));
    }
    if (!std::exchange(seen_mlp[layer.sparse], true)) FLUVIAL_RETURN_IF_ERROR(at_least(FeedForwardBytes(step, layer)));
  }
  return whole.bytes() + Arena::Aligned(most);
}

Status Glm5Next::Enter(const BlockContext& c, const HyperWeights& w, const TensorView& norm, const StepScratch& t) {
  FLUVIAL_RETURN_IF_ERROR(Linear(c, t.streams, w.fn, t.projected));
  hc::CollapseArgs args;
  args.streams = t.streams;
  args.projected = t.projected;
  args.base = w.base;
  args.scale = w.scale;
  args.x = t.x;
  args.post = t.post;
  args.mix = t.mix;
  FLUVIAL_RETURN_IF_ERROR(hc::Collapse(c.stream, hyper_, args));
  return Norm(c, kRms, norm, t.x, {}, t.x);
}

Status Glm5Next::Index(const BlockContext& c, const IndexerWeights& w, const LayerCache& cache, bool select,
                       const StepScratch& t) {
  Scratch scratch(&c.arena);
  const IndexScratch s = TakeIndex(scratch, t.x.dim(0));
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  const int64_t dim = config_.indexer.dim;
  const TensorView key = Columns(s.rows, 0, dim);
  FLUVIAL_RETURN_IF_ERROR(Linear(c, t.x, w.k, key));
  ops::norm::Args norm;
  norm.form = ops::norm::Form::kLayer;
  norm.eps = kIndexNormEps;
  norm.x = norm.y = key;
  norm.weight = w.k_norm;
  norm.bias = w.k_bias;
  FLUVIAL_RETURN_IF_ERROR(ops::norm::Run(c.stream, norm));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, t.x, w.gate, Columns(s.rows, dim, dim)));
  // [pages, 1, page_size, 2 dim] as rows.
  const TensorView& v = cache.v_pages;
  const TensorView pages(v.data, v.dtype, {v.dims[0], v.dims[2], v.dims[3]}, {v.strides[0], v.strides[2], 1});
  FLUVIAL_RETURN_IF_ERROR(ops::paged_attention::AppendRows(c.stream, s.rows, pages, *c.step.kv));
  if (!select) return Status::Ok();

  FLUVIAL_RETURN_IF_ERROR(Linear(c, t.queries, w.q, s.q));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, t.x, w.weights, s.weights));
  const auto problem = IndexProblem(c.step);
  FLUVIAL_ASSIGN_OR_RETURN(const auto* backend, c.operators.Choose(problem));
  pool_index::Args args;
  args.q = Heads(s.q, config_.indexer.heads, dim);
  args.weights = s.weights;
  args.pages = pages;
  args.ape = w.ape;
  args.selected = t.selected;
  args.counts = t.counts;
  args.plan = c.step.kv;
  return RunBackend(c, backend, problem, args);
}

Status Glm5Next::Forward(Stream& stream, const Step& step, Arena& arena) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, layers_.size()));
  if (step.tokens() == 0) return Status::Ok();
  Scratch scratch(&arena);
  const StepScratch t = Take(scratch, step);
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  const BlockContext c{stream, operators_, arena, step, io_, static_cast<float>(config_.norm_eps)};
  const bool select = t.selected.rank != 0;
  const KeySelection selection{t.selected, t.counts};

  FLUVIAL_RETURN_IF_ERROR(ops::elementwise::GatherRows(stream, embed_, step.ids, t.x));
  FLUVIAL_RETURN_IF_ERROR(hc::Spread(stream, hyper_, t.x, t.streams));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const KdaLayer& layer = layers_[i];
    const GlmLayer& extra = extra_[i];
    const LayerCache& cache = (*step.caches)[i];
    if (step.observer != nullptr) (*step.observer)(static_cast<int>(i), t.streams);
    FLUVIAL_RETURN_IF_ERROR(Enter(c, extra.mixer, layer.input_norm, t));
    if (layer.type == LayerType::kFullAttention) {
      FLUVIAL_RETURN_IF_ERROR(MlaQueryLatents(c, mla_, layer.mla, t.x, t.queries));
      // A layer without an indexer keeps the lists of the one before it.
      if (extra.indexes) FLUVIAL_RETURN_IF_ERROR(Index(c, extra.indexer, cache, select, t));
      FLUVIAL_RETURN_IF_ERROR(Mla(c, mla_, layer.mla, cache, t.x, t.queries, select ? &selection : nullptr, t.block));
    } else {
      FLUVIAL_RETURN_IF_ERROR(Kda(c, kda_, layer.kda, cache, t.x, t.block));
    }
    const hc::ExpandArgs expand{t.streams, t.block, t.post, t.mix};
    FLUVIAL_RETURN_IF_ERROR(hc::Expand(stream, hyper_, expand));
    FLUVIAL_RETURN_IF_ERROR(Enter(c, extra.feed_forward, layer.post_norm, t));
    FLUVIAL_RETURN_IF_ERROR(FeedForward(c, layer, t.x, t.block));
    FLUVIAL_RETURN_IF_ERROR(hc::Expand(stream, hyper_, expand));
  }
  if (step.observer != nullptr) (*step.observer)(static_cast<int>(layers_.size()), t.streams);
  FLUVIAL_RETURN_IF_ERROR(hc::Mean(stream, hyper_, t.streams, t.x));
  return Head(c, head_, t.x);
}

}  // namespace

Result<std::unique_ptr<Model>> LoadGlm5Next(const std::string& directory, weights::ModelConfig config,
                                            const LoadOptions& options, Stream& stream) {
  FLUVIAL_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(directory, config, options, stream));
  auto model = std::make_unique<Glm5Next>(std::move(opened.checkpoint), std::move(config), opened.io,
                                          std::move(opened.operators));
  FLUVIAL_RETURN_IF_ERROR(model->Load(options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace fluvial::models
