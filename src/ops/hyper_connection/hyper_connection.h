// SPDX-License-Identifier: Apache-2.0
// Manifold-constrained hyper-connections (mHC): S residual streams that are collapsed into one row before a block and
// mixed with its output after it. Row operators around two linear layers' worth of work; no backends to choose from.
//
// Per token, with streams X [S, H] and z = fn x flatten(X) (the caller's gemm, fp32, (2 + S) S numbers):
//     m      = z / sqrt(mean(flatten(X)^2) + norm_eps)           the unweighted RMS norm, applied after the product
//     pre_s  = sigmoid(m[s] scale[0] + base[s]) + eps
//     post_s = 2 sigmoid(m[S+s] scale[1] + base[S+s])
//     C      = softmax over columns of (m[2S..] scale[2] + base[2S..]) + eps, [S, S]; then divided by
//              (its column sums + eps); then iterations-1 times by (row sums + eps) and (column sums + eps)
//     x      = r( sum_s pre_s X_s )                                                            the block's input
//     X'_t   = r( r( r(post_t) y ) + r( sum_s r(C[s,t]) X_s ) )          after the block gave y, [H]
// r() rounds to the type of the streams. "Column sum" is the sum over the first index of C.
// Sources: Xie et al., "mHC: Manifold-Constrained Hyper-Connections" (arXiv 2512.24880);
// Glm5NextTextHyperConnection and Glm5NextTextDecoderLayer of transformers 5.24.
#pragma once

#include <cstdint>

#include "base/tensor_view.h"
#include "device/device.h"
#include "fluvial/status.h"

namespace fluvial::ops::hyper_connection {

inline constexpr int32_t kMaxStreams = 8;

struct Spec {
  int32_t streams = 4;      ///< S, 1..kMaxStreams
  float norm_eps = 1e-5f;   ///< of the RMS norm
  float eps = 1e-6f;        ///< of pre and of the iterations
  int32_t iterations = 20;  ///< >= 1

  int32_t weights() const { return (2 + streams) * streams; }
};

/// Tensors of Collapse. T tokens; unit inner stride, any row pitch.
struct CollapseArgs {
  TensorView streams;    ///< io [T, S*H]: streams of a token one after the other
  TensorView projected;  ///< fp32 [T, weights()]
  TensorView base;       ///< fp32 [weights()]
  TensorView scale;      ///< fp32 [3]
  TensorView x;          ///< io [T, H]
  TensorView post;       ///< fp32 [T, S]
  TensorView mix;        ///< fp32 [T, S*S]: C, rows one after the other
};

/// x, post and C from the streams. Errors: kInvalidArgument naming tensor and value, kRefused without a body.
Status Collapse(Stream& stream, const Spec& spec, const CollapseArgs& args);

/// Tensors of Expand, as above.
struct ExpandArgs {
  TensorView streams;  ///< io [T, S*H]; replaced by the new streams
  TensorView y;        ///< io [T, H]
  TensorView post;
  TensorView mix;
};

Status Expand(Stream& stream, const Spec& spec, const ExpandArgs& args);

/// streams = x, copied S times. x [T, H], streams [T, S*H], of one type.
Status Spread(Stream& stream, const Spec& spec, const TensorView& x, const TensorView& streams);

/// y = r( mean of the streams ).
Status Mean(Stream& stream, const Spec& spec, const TensorView& streams, const TensorView& y);

}  // namespace fluvial::ops::hyper_connection
