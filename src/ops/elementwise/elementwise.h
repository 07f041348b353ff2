// SPDX-License-Identifier: Apache-2.0
// Elementwise and row-copy operators between the big ones, with the rounding points of transformers' eager code.
//
// Tensors are rank 1 or 2 [T, D] (rank 3 [T, H, D] where said) with unit inner stride and any row pitch. Types are
// fp32, bf16 or fp16; arithmetic is fp32 and r() rounds to the type of the output (the identity for fp32). Outputs may
// be one of the inputs (same pointer and strides), otherwise must not overlap them. Every function runs on the
// stream's device; kRefused on a device this build has no body for, kInvalidArgument naming tensor and value otherwise.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/tensor_view.h"
#include "device/device.h"
#include "fluvial/status.h"

namespace fluvial::ops::elementwise {

/// sigmoid(x) = 1 / (1 + exp(-x)); silu(x) = x * sigmoid(x); gelu is the erf form, gelu_tanh
/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); softplus(x) = x above 20, else log(1 + exp(x)).
enum class Function : uint8_t { kSigmoid, kSilu, kGelu, kGeluTanh, kSoftplus };

/// "sigmoid", "silu", "gelu", "gelu_tanh", "softplus".
std::string_view Name(Function function);

/// y = r( f(x) ). Rank 1..3.
Status Apply(Stream& stream, Function f, const TensorView& x, const TensorView& y);

/// SwiGLU and its relatives on gate and up, both [T, I] (two halves of one fused projection are two views).
struct GluArgs {
  enum class Form : uint8_t {
    kSwiGlu,   ///< y = r( r(silu(gate)) * up )
    kClamped,  ///< gate <- min(gate, limit), up <- clamp(up, -limit, limit), then as kSwiGlu (GLM)
    kSitu,     ///< y = r( beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta) ) in fp32 (Kimi-K3)
  };
  Form form = Form::kSwiGlu;
  float limit = 0;        ///< kClamped: > 0
  float beta = 0;         ///< kSitu: > 0
  float linear_beta = 0;  ///< kSitu: > 0
  TensorView gate;
  TensorView up;
  TensorView y;
};
Status Glu(Stream& stream, const GluArgs& args);

/// y = r( x * r(sigmoid(gate)) ). Shapes [T, D] or [T, H, D]; the innermost dimension of gate may be 1 (one gate per
/// row: the shared expert's).
Status SigmoidMul(Stream& stream, const TensorView& x, const TensorView& gate, const TensorView& y);

/// y = r( a + b ): residual streams, position embeddings. Rank 1..3.
Status Add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y);

/// y = r( x * scale ) with one fp32 factor. Rank 1..3.
Status Scale(Stream& stream, const TensorView& x, float scale, const TensorView& y);

/// y = r( x ): conversion between fp32, bf16 and fp16 (round to nearest even), or a strided copy. Rank 1..3.
Status Cast(Stream& stream, const TensorView& x, const TensorView& y);

/// y[t] = r( table[ids[t]] ). ids i32 or i64 [T]; table [V, H]; y [T, H]. An id outside 0..V-1 is kInvalidArgument and
/// nothing is written (CPU).
Status GatherRows(Stream& stream, const TensorView& table, const TensorView& ids, const TensorView& y);

/// y[rows[t]] = r( x[t] ). rows i32 or i64 [T], distinct; x [T, H]; y [N, H]. Image features into token rows. A row
/// outside 0..N-1 is kInvalidArgument and nothing is written (CPU).
Status ScatterRows(Stream& stream, const TensorView& x, const TensorView& rows, const TensorView& y);

}  // namespace fluvial::ops::elementwise
