// SPDX-License-Identifier: Apache-2.0
// Blocks shared by architectures: Gated DeltaNet, gated full attention, SwiGLU. Plain functions over operators.
//
// Each block has a ...Bytes() twin that counts its scratch for a step without touching data; both follow one list of
// tensors, so they cannot disagree. Rounding points are those of transformers' eager code: every linear layer, norm,
// activation and residual sum is rounded to the model's type; the delta rule is fp32 from the norm of q and k to its
// output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "base/arena.h"
#include "base/tensor_view.h"
#include "models/model.h"
#include "models/operators.h"
#include "ops/norm/norm.h"

namespace fluvial::models {

/// Hands out packed tensors from an arena and gives them all back at the end of its scope; without an arena it only
/// counts. The first error is kept.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(Arena* arena) : arena_(arena), mark_(arena == nullptr ? 0 : arena->used()) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (arena_ != nullptr) arena_->Rewind(mark_);
  }

  TensorView Take(DType dtype, std::initializer_list<int64_t> shape);

  size_t bytes() const { return bytes_; }
  const Status& status() const { return status_; }

 private:
  Arena* arena_ = nullptr;
  size_t mark_ = 0;
  size_t bytes_ = 0;
  Status status_;
};

/// Rows begin .. begin+count-1.
TensorView Rows(const TensorView& t, int64_t begin, int64_t count);

/// Columns begin .. begin+count-1 of [T, *].
TensorView Columns(const TensorView& t, int64_t begin, int64_t count);

/// [T, H*D] seen as [T, H, D]; columns of one head may be followed by `skip` others.
TensorView Heads(const TensorView& t, int64_t heads, int64_t dim, int64_t skip = 0);

/// Adds level `level` of the step's features to the rows of `hidden` [T, H] that they belong to (DeepStack).
Status AddFeatures(Stream& stream, const Step& step, int64_t level, const TensorView& hidden);

/// Puts the first level of the step's features over the embeddings in `hidden` [T, H].
Status PlaceFeatures(Stream& stream, const Step& step, const TensorView& hidden);

/// What every block of a step needs.
struct BlockContext {
  Stream& stream;
  Operators& operators;
  Arena& arena;
  const Step& step;
  DType io;   ///< type of activations
  float eps;  ///< of the norms
};

struct GdnDims {
  int64_t hidden = 0;
  int32_t hk = 0;
  int32_t hv = 0;
  int32_t k = 0;
  int32_t v = 0;
  int32_t width = 4;

  int64_t key_dim() const { return int64_t{hk} * k; }
  int64_t value_dim() const { return int64_t{hv} * v; }
  int64_t channels() const { return 2 * key_dim() + value_dim(); }
  int32_t repeat() const { return hv / hk; }
};

/// Projections in one of two orders. Flat (Qwen3.5): rows of in_qkv are q of all heads, k of all heads, v of all heads.
/// Interleaved (Qwen3-Next): per key head and its r = Hv/Hk value heads, in_qkvz has k rows of q, k rows of k, r*v rows
/// of v, r*v rows of z, and in_ba r rows of b, r rows of a; the four flat ones are then undefined.
struct GdnWeights {
  TensorView in_qkv;   ///< [channels, H]
  TensorView in_z;     ///< [Hv*V, H]
  TensorView in_b;     ///< [Hv, H]
  TensorView in_a;     ///< [Hv, H]
  TensorView in_qkvz;  ///< [channels + Hv*V, H]
  TensorView in_ba;    ///< [2*Hv, H]
  TensorView conv;     ///< [channels, width], fp32 or the model's type
  TensorView a_log;    ///< fp32 [Hv]
  TensorView dt_bias;  ///< fp32 [Hv]
  TensorView norm;     ///< [V], plain weight
  TensorView out;      ///< [H, Hv*V]
};

Result<size_t> GdnBytes(Operators& operators, const Step& step, const GdnDims& dims, const GdnWeights& w, DType io,
                        DType conv_state, DType recurrent_state);

/// y = GDN(x): x [T, H] is the normalised input, y [T, H]. Advances the states in `cache`.
Status Gdn(const BlockContext& c, const GdnDims& dims, const GdnWeights& w, const LayerCache& cache,
           const TensorView& x, const TensorView& y);

struct AttentionDims {
  int64_t hidden = 0;
  int32_t hq = 0;
  int32_t hkv = 0;
  int32_t d = 0;
  bool gate = true;                                            ///< the output is multiplied by sigmoid(gate)
  ops::norm::Form qk_norm = ops::norm::Form::kRmsZeroCentred;  ///< of weights that have q_norm and k_norm
};

/// With a gate, q holds per head d query rows, then d gate rows.
struct AttentionWeights {
  TensorView q;  ///< [2*Hq*d, H] with a gate, else [Hq*d, H]
  TensorView k;  ///< [Hkv*d, H]
  TensorView v;
  TensorView o;                               ///< [H, Hq*d]
  TensorView q_bias, k_bias, v_bias, o_bias;  ///< each undefined without a bias
  TensorView q_norm, k_norm;                  ///< [d]; undefined: q and k are not normalised
};

Result<size_t> AttentionBytes(Operators& operators, const Step& step, const AttentionDims& dims,
                              const AttentionWeights& w, DType io, DType kv);

/// y = Attention(x); cos and sin fp32 [T, rotary/2]. Appends to the pages in `cache`.
Status Attention(const BlockContext& c, const AttentionDims& dims, const AttentionWeights& w, const LayerCache& cache,
                 const TensorView& cos, const TensorView& sin, const TensorView& x, const TensorView& y);

struct MlpWeights {
  TensorView gate;  ///< [I, H]
  TensorView up;    ///< [I, H]
  TensorView down;  ///< [H, I]
  float limit = 0;  ///< of the clamped SwiGLU (elementwise.h); 0: none
};

Result<size_t> MlpBytes(Operators& operators, const Step& step, const MlpWeights& w, DType io);

/// y = down( r(silu(gate x)) * up x ), gate x and up x clamped first when there is a limit.
Status Mlp(const BlockContext& c, const MlpWeights& w, const TensorView& x, const TensorView& y);

/// Runs one backend with scratch from the arena.
template <class Problem, class Args>
Status RunBackend(const BlockContext& c, const ops::Backend<Problem, Args>* backend, const Problem& problem,
                  const Args& args) {
  const size_t bytes = backend->workspace_bytes(problem, c.operators.device());
  const size_t mark = c.arena.used();
  FLUVIAL_ASSIGN_OR_RETURN(void* scratch, c.arena.Take(bytes));
  const Status status = backend->run(c.stream, problem, args, {scratch, bytes});
  c.arena.Rewind(mark);
  return status;
}

/// The gemm problem of y = x w^T for M rows of type io.
ops::gemm::Problem LinearProblem(int64_t m, const TensorView& w, DType io, bool bias = false);

}  // namespace fluvial::models
