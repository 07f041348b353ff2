// SPDX-License-Identifier: Apache-2.0
#include "models/glm5_next.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "models/block_parts.h"
#include "models/kda_layer.h"
#include "models/operators.h"
#include "ops/elementwise/elementwise.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/pool_index/pool_index.h"

namespace fluvial::models {
namespace {

namespace hc = ops::hyper_connection;
namespace pool_index = ops::pool_index;
using weights::ModelConfig;
using weights::WeightReader;

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

struct GlmWeights {
  KdaModelWeights base;
  std::vector<GlmLayer> extra;
};

hc::Spec HyperSpec(const ModelConfig& c) {
  hc::Spec spec;
  spec.streams = static_cast<int32_t>(c.hyper.streams);
  spec.norm_eps = static_cast<float>(c.norm_eps);
  spec.eps = static_cast<float>(c.hyper.eps);
  spec.iterations = static_cast<int32_t>(c.hyper.iterations);
  return spec;
}

HyperWeights TakeHyper(WeightReader& reader, const ModelConfig& c, const std::string& prefix, const char* released,
                       const char* module, WeightCopies& copies) {
  const std::string p = reader.Has(prefix + module + ".fn") ? prefix + module + "." : prefix + released + "_";
  const int32_t n = HyperSpec(c).weights();
  HyperWeights w;
  w.fn = reader.Take(p + "fn", {n, c.hyper.streams * c.hidden});
  w.base = copies.As(reader.Take(p + "base", {n}), DType::kF32);
  w.scale = copies.As(reader.Take(p + "scale", {3}), DType::kF32);
  return w;
}

void TakeIndexer(WeightReader& reader, const ModelConfig& c, const std::string& p, WeightCopies& copies,
                 IndexerWeights& w) {
  const weights::IndexerConfig& x = c.indexer;
  w.q = reader.Take(p + "wq_b.weight", {x.heads * x.dim, c.latent.query_rank});
  w.k = reader.Take(p + "wk.weight", {x.dim, c.hidden});
  w.k_norm = reader.Take(p + "k_norm.weight", {x.dim});
  w.k_bias = reader.Take(p + "k_norm.bias", {x.dim});
  w.weights = reader.Take(p + "weights_proj.weight", {x.heads, c.hidden});
  w.gate = reader.Take(p + "index_kpool_compress_gate", {x.dim, c.hidden});
  w.ape = copies.As(reader.Take(p + "index_kpool_compress_ape", {x.pool, x.dim}), DType::kF32);
}

KdaNaming Naming(const WeightReader& reader) {
  const std::string nested = "model.language_model.";
  KdaNaming naming;
  // Flat files of the text model drop "language_model.".
  naming.root = reader.Has("model.embed_tokens.weight") ? "model." : nested;
  naming.conv_in_fp32 = true;
  naming.moe = "mlp.";
  return naming;
}

Status TakeGlm(WeightReader& reader, const ModelConfig& c, const KdaModelDims& dims, DType io, WeightCopies& copies,
               GlmWeights& w) {
  const KdaNaming naming = Naming(reader);
  FLUVIAL_RETURN_IF_ERROR(TakeKdaModel(reader, c, dims, naming, io, copies, w.base));
  reader.IgnorePrefix("model.visual.");
  w.extra.resize(w.base.layers.size());
  for (size_t i = 0; i < w.extra.size(); ++i) {
    const std::string prefix = naming.root + "layers." + std::to_string(i) + ".";
    w.extra[i].mixer = TakeHyper(reader, c, prefix, "hc_attn", "attn_hc", copies);
    w.extra[i].feed_forward = TakeHyper(reader, c, prefix, "hc_ffn", "ffn_hc", copies);
    w.extra[i].indexes = w.base.layers[i].full_attention && !c.indexer.shared[i];
    if (w.extra[i].indexes) TakeIndexer(reader, c, prefix + "self_attn.indexer.", copies, w.extra[i].indexer);
  }
  return Status::Ok();
}

/// The layers of multi-token prediction, to count them: sparse attention and experts with a plain residual, two norms
/// and a projection before, a norm after. Source: vllm/models/glm5next/common/mtp.py.
Status TakeMtp(WeightReader& reader, ModelConfig c, const KdaModelDims& dims, DType io) {
  WeightCopies copies;
  const KdaNaming naming = Naming(reader);
  c.layer_types.resize(static_cast<size_t>(c.layers + c.mtp_layers), weights::LayerType::kFullAttention);
  for (int64_t i = c.layers; i < c.layers + c.mtp_layers; ++i) {
    const std::string p = naming.root + "layers." + std::to_string(i) + ".";
    for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"}) {
      reader.Take(p + norm, {c.hidden});
    }
    reader.Take(p + "eh_proj.weight", {c.hidden, 2 * c.hidden});
    KdaLayer layer;
    FLUVIAL_RETURN_IF_ERROR(TakeKdaLayer(reader, c, dims, naming, p, i, io, copies, layer));
    IndexerWeights indexer;
    TakeIndexer(reader, c, p + "self_attn.indexer.", copies, indexer);
  }
  return Status::Ok();
}

/// Norms without bias; a convolution merges the patches; the merger is a projection, a layer norm and a gated MLP.
int64_t VisionParameters(const weights::GlmVisionConfig& v) {
  const int64_t h = v.hidden, i = v.intermediate, o = v.out_hidden;
  const int64_t patch = h * v.in_channels * v.temporal_patch * v.patch * v.patch + h;
  const int64_t attention = (3 * h * h + 3 * h) + (h * h + h) + 2 * (h / v.heads);
  const int64_t mlp = 2 * (i * h + i) + (h * i + h);
  const int64_t merger = (o * h * v.merge * v.merge + o) + o * o + 2 * o + 3 * v.projection * o;
  return patch + v.depth * (2 * h + attention + mlp) + h + merger;
}

CacheSpec GlmCacheSpec(const ModelConfig& c, const KdaModelDims& dims, DType io, const LoadOptions& options) {
  CacheSpec cache = KdaCacheSpec(c, dims, io, options);
  // The second pages of a layer with an indexer hold its key and gate.
  for (size_t i = 0; i < cache.layers.size(); ++i) {
    if (!cache.layers[i].linear() && !c.indexer.shared[i]) {
      cache.layers[i].d_v = static_cast<int32_t>(2 * c.indexer.dim);
    }
  }
  return cache;
}

class Glm5Next : public Model {
 public:
  Glm5Next(OpenedModel opened, ModelConfig config)
      : checkpoint_(std::move(opened.checkpoint)),
        config_(std::move(config)),
        io_(opened.io),
        operators_(std::move(opened.operators)),
        dims_(config_),
        hyper_(HyperSpec(config_)) {}

  Status Load(const LoadOptions& options);

  std::string_view architecture() const override { return weights::Name(config_.architecture); }
  DType dtype() const override { return io_; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t max_positions() const override { return config_.max_positions; }
  int64_t parameters() const override { return parameters_; }
  uint64_t weight_bytes() const override { return checkpoint_.bytes(); }
  const CacheSpec& cache_spec() const override { return cache_spec_; }
  bool has_vision() const override { return false; }
  std::vector<OperatorUse> operators() const override { return operators_.uses(); }

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
  Result<size_t> IndexBytes(const Step& step, const IndexerWeights& w);
  /// Appends the indexer's rows to the cache and, when `select`, fills t.selected and t.counts.
  Status Index(const BlockContext& c, const IndexerWeights& w, const LayerCache& cache, bool select,
               const StepScratch& t);
  /// x = the block's input, normalised; post and mix wait for Expand.
  Status Enter(const BlockContext& c, const HyperWeights& w, const TensorView& norm, const StepScratch& t);

  weights::Checkpoint checkpoint_;
  ModelConfig config_;
  DType io_;
  Operators operators_;
  CacheSpec cache_spec_;
  KdaModelDims dims_;
  hc::Spec hyper_;
  GlmWeights weights_;
  WeightCopies copies_;
  int64_t parameters_ = 0;
};

Status Glm5Next::Load(const LoadOptions& options) {
  if (hyper_.streams > hc::kMaxStreams) {
    return Status::UnusableModel(checkpoint_.directory() + "/config.json: hc_mult is " +
                                 std::to_string(hyper_.streams) + "; at most " + std::to_string(hc::kMaxStreams) +
                                 " residual streams are supported");
  }
  WeightReader reader(checkpoint_);
  FLUVIAL_RETURN_IF_ERROR(TakeGlm(reader, config_, dims_, io_, copies_, weights_));
  FLUVIAL_RETURN_IF_ERROR(reader.Finish());
  copies_.Keep(reader.TakeAlignedCopies());
  parameters_ = CountParameters(checkpoint_);
  cache_spec_ = GlmCacheSpec(config_, dims_, io_, options);
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
  out.queries = s.Take(io_, {t, dims_.mla.query_rank});
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
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, weights_.base.layers.size()));
  Scratch whole;
  Take(whole, step);
  FLUVIAL_ASSIGN_OR_RETURN(size_t most, HeadBytes(operators_, step, weights_.base.head, io_));
  const auto at_least = [&](const Result<size_t>& bytes) -> Status {
    if (!bytes.ok()) return bytes.status();
    most = std::max(most, *bytes);
    return Status::Ok();
  };
  // Layers of one kind have equal shapes.
  bool seen_mixer[2] = {}, seen_mlp[2] = {}, seen_indexer = false;
  for (size_t i = 0; i < weights_.base.layers.size(); ++i) {
    const KdaLayer& layer = weights_.base.layers[i];
    if (i == 0) {
      ops::gemm::Problem fn = LinearProblem(step.tokens(), weights_.extra[i].mixer.fn, io_);
      fn.y = DType::kF32;
      FLUVIAL_RETURN_IF_ERROR(at_least(operators_.LinearBytes(fn)));
    }
    if (!std::exchange(seen_mixer[layer.full_attention], true)) {
      FLUVIAL_RETURN_IF_ERROR(
          at_least(KdaMixerBytes(operators_, step, dims_, layer, cache_spec_, io_, Selected(step))));
    }
    if (weights_.extra[i].indexes && !std::exchange(seen_indexer, true)) {
      FLUVIAL_RETURN_IF_ERROR(at_least(IndexBytes(step, weights_.extra[i].indexer)));
    }
    if (!std::exchange(seen_mlp[layer.sparse], true))
      FLUVIAL_RETURN_IF_ERROR(at_least(KdaFeedForwardBytes(operators_, step, dims_, layer, io_)));
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
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, weights_.base.layers.size()));
  if (step.tokens() == 0) return Status::Ok();
  Scratch scratch(&arena);
  const StepScratch t = Take(scratch, step);
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  const BlockContext c{stream, operators_, arena, step, io_, static_cast<float>(config_.norm_eps)};
  const bool select = t.selected.rank != 0;
  const KeySelection selection{t.selected, t.counts};

  FLUVIAL_RETURN_IF_ERROR(ops::elementwise::GatherRows(stream, weights_.base.embed, step.ids, t.x));
  FLUVIAL_RETURN_IF_ERROR(hc::Spread(stream, hyper_, t.x, t.streams));
  for (size_t i = 0; i < weights_.base.layers.size(); ++i) {
    const KdaLayer& layer = weights_.base.layers[i];
    const GlmLayer& extra = weights_.extra[i];
    const LayerCache& cache = (*step.caches)[i];
    if (step.observer != nullptr) (*step.observer)(static_cast<int>(i), t.streams);
    FLUVIAL_RETURN_IF_ERROR(Enter(c, extra.mixer, layer.input_norm, t));
    if (layer.full_attention) {
      FLUVIAL_RETURN_IF_ERROR(MlaQueryLatents(c, dims_.mla, layer.mla, t.x, t.queries));
      // A layer without an indexer keeps the lists of the one before it.
      if (extra.indexes) FLUVIAL_RETURN_IF_ERROR(Index(c, extra.indexer, cache, select, t));
      FLUVIAL_RETURN_IF_ERROR(
          Mla(c, dims_.mla, layer.mla, cache, t.x, t.queries, select ? &selection : nullptr, t.block));
    } else {
      FLUVIAL_RETURN_IF_ERROR(Kda(c, dims_.kda, layer.kda, cache, t.x, t.block));
    }
    const hc::ExpandArgs expand{t.streams, t.block, t.post, t.mix};
    FLUVIAL_RETURN_IF_ERROR(hc::Expand(stream, hyper_, expand));
    FLUVIAL_RETURN_IF_ERROR(Enter(c, extra.feed_forward, layer.post_norm, t));
    FLUVIAL_RETURN_IF_ERROR(KdaFeedForward(c, dims_, layer, t.x, t.block));
    FLUVIAL_RETURN_IF_ERROR(hc::Expand(stream, hyper_, expand));
  }
  if (step.observer != nullptr) (*step.observer)(static_cast<int>(weights_.base.layers.size()), t.streams);
  FLUVIAL_RETURN_IF_ERROR(hc::Mean(stream, hyper_, t.streams, t.x));
  return Head(c, weights_.base.head, t.x);
}

}  // namespace

Result<Footprint> Glm5NextFootprint(const ModelConfig& config, const LoadOptions& options) {
  const DType io = options.dtype.value_or(config.dtype.value_or(DType::kBF16));
  const KdaModelDims dims(config);
  auto text = WeightReader::Counting(), mtp = WeightReader::Counting();
  GlmWeights counted;
  WeightCopies copies;
  FLUVIAL_RETURN_IF_ERROR(TakeGlm(text, config, dims, io, copies, counted));
  FLUVIAL_RETURN_IF_ERROR(TakeMtp(mtp, config, dims, io));
  Footprint out;
  out.parameters = text.asked_elements();
  out.mtp_parameters = mtp.asked_elements();
  if (config.glm_vision) out.vision_parameters = VisionParameters(*config.glm_vision);
  out.cache = GlmCacheSpec(config, dims, io, options);
  return out;
}

Result<std::unique_ptr<Model>> LoadGlm5Next(const std::string& directory, ModelConfig config,
                                            const LoadOptions& options, Stream& stream) {
  FLUVIAL_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(directory, config, options, stream));
  auto model = std::make_unique<Glm5Next>(std::move(opened), std::move(config));
  FLUVIAL_RETURN_IF_ERROR(model->Load(options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace fluvial::models
