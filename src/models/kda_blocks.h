// SPDX-License-Identifier: Apache-2.0
// Blocks of the Kimi Delta Attention models (Kimi-Linear, GLM-5.3): KDA with either gate, and latent attention without
// position encoding. Rounding points are those of transformers' eager code (models/kimi_linear, models/glm5_next).
#pragma once

#include <cstdint>
#include <optional>

#include "models/blocks.h"

namespace fluvial::models {

struct KdaDims {
  int64_t hidden = 0;
  int32_t heads = 0;
  int32_t dim = 0;  ///< of keys and values of a head
  int32_t width = 4;
  std::optional<float> lower_bound;  ///< bounded gate; absent: softplus gate

  int64_t inner() const { return int64_t{heads} * dim; }
};

struct KdaWeights {
  TensorView q, k, v;   ///< [inner, H]
  TensorView conv;      ///< [3 inner, width] of q, k, v; fp32: computed in fp32 and rounded once; else the model's type
  TensorView f_a, f_b;  ///< decay gate, low rank: [dim, H], [inner, dim]
  TensorView b;         ///< [heads, H]
  TensorView g_a, g_b;  ///< output gate, low rank
  TensorView a_log;     ///< fp32 [heads]
  TensorView dt_bias;   ///< fp32 [heads, dim]
  TensorView norm;      ///< [dim], plain weight
  TensorView out;       ///< [H, inner]
};

Result<size_t> KdaBytes(Operators& operators, const Step& step, const KdaDims& dims, const KdaWeights& w, DType io,
                        DType conv_state, DType recurrent_state);

/// y = KDA(x): x [T, H] is the normalised input, y [T, H]. Advances the states in `cache`.
///     q, k, v = silu(conv(W x));  g = gate(f_b(f_a x));  beta = r(sigmoid(b x));  o = delta rule(q, k, v, g, beta)
///     y = out( w * o / rms(o) * sigmoid(g_b(g_a x)) )
Status Kda(const BlockContext& c, const KdaDims& dims, const KdaWeights& w, const LayerCache& cache,
           const TensorView& x, const TensorView& y);

struct MlaDims {
  int64_t hidden = 0;
  int32_t heads = 0;
  int32_t nope = 0;
  int32_t rope = 0;  ///< shared key columns; never rotated
  int32_t v = 0;
  int32_t rank = 0;
  int32_t query_rank = 0;  ///< 0: one projection makes the queries
  float norm_eps = 1e-6f;  ///< of the norms of the latents

  int64_t width() const { return int64_t{rank} + rope; }  ///< of a cache row
};

struct MlaWeights {
  TensorView q;                   ///< [heads*(nope+rope), H]; with query_rank undefined, and then
  TensorView q_a, q_a_norm, q_b;  ///< [query_rank, H], [query_rank], [heads*(nope+rope), query_rank]
  TensorView kv_a;                ///< [rank+rope, H]
  TensorView kv_a_norm;           ///< [rank]
  TensorView kv_b;                ///< [heads*(nope+v), rank]
  TensorView o;                   ///< [H, heads*v]
};

/// Keys that each query may see (sparse attention): see ops/paged_attention/mla_attention.h.
struct KeySelection {
  TensorView positions;  ///< i32 [T, most]
  TensorView counts;     ///< i32 [T]
};

/// `selected`: most keys listed for a query, 0 without selection.
Result<size_t> MlaBytes(Operators& operators, const Step& step, const MlaDims& dims, const MlaWeights& w, DType io,
                        DType kv, int32_t selected);

/// Low-rank queries: to [T, query_rank] = r(norm(q_a x)). The indexer of sparse attention reads them too.
Status MlaQueryLatents(const BlockContext& c, const MlaDims& dims, const MlaWeights& w, const TensorView& x,
                       const TensorView& to);

/// y = MLA(x); `queries` is x, or the result of MlaQueryLatents with query_rank. Appends to the pages in `cache`.
///     c | r = kv_a x;  cache row = norm(c) | r;  attention over the cache (mla_attention.h);  y = o(heads)
Status Mla(const BlockContext& c, const MlaDims& dims, const MlaWeights& w, const LayerCache& cache,
           const TensorView& x, const TensorView& queries, const KeySelection* selection, const TensorView& y);

}  // namespace fluvial::models
