// SPDX-License-Identifier: Apache-2.0
// Normalisations over the last dimension, with the rounding points of transformers' eager code.
//
// x is read as fp32, statistics are fp32, r() rounds to the type of x (the model's type; the identity for fp32),
// the result is rounded to the type of y. `rstd` = 1 / sqrt(mean(x^2) + eps), computed in fp32.
//
//   kRms            y = r( w * r(x * rstd) )                     Llama, Qwen2.5-VL, Qwen3, Kimi, GLM text
//   kRmsZeroCentred y = r( x * rstd * (1 + w) )                  Qwen3-Next, Qwen3.5: all but the gated norm
//   kRmsSiluGate    y = r( r(w * r(x * rstd)) * silu(z) )        Qwen3-Next, Qwen3.5: output of GDN; z as fp32
//   kRmsSigmoidGate y = r( w * (x * rstd) * sigmoid(z) )         Kimi, GLM: output of KDA; fp32 until the end
//   kLayer          y = r( (x - mean) * rstd' * w + b )          vision towers; rstd' = 1 / sqrt(var + eps), biased var
//   kUnweighted     y = r( x * rstd )                            GLM hyper-connections
//
// Sources: huggingface/transformers modeling files of the models named; Zhang & Sennrich 2019 (RMSNorm); Ba et al.
// 2016 (LayerNorm).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/tensor_view.h"
#include "device/device.h"
#include "fluvial/status.h"

namespace fluvial::ops::norm {

enum class Form : uint8_t { kRms, kRmsZeroCentred, kRmsSiluGate, kRmsSigmoidGate, kLayer, kUnweighted };

/// "rms", "rms_zero_centred", "rms_silu_gate", "rms_sigmoid_gate", "layer", "unweighted".
std::string_view Name(Form form);

/// Tensors of one call. x, y and gate have the same rank-2 [T, D] or rank-3 [T, H, D] shape, unit inner stride and
/// any outer strides (a head slice of a fused projection is fine). Every row of D elements is one normalisation.
struct Args {
  Form form = Form::kRms;
  float eps = 1e-6f;  ///< > 0
  TensorView x;       ///< fp32, bf16 or fp16
  TensorView weight;  ///< [D] fp32, bf16 or fp16, packed; undefined for kUnweighted, optional for kLayer
  TensorView bias;    ///< [D] fp32, bf16 or fp16, packed; kLayer only, optional
  TensorView gate;    ///< z: fp32, bf16 or fp16; the two gated forms only
  /// Optional, type and shape of x: residual <- r(residual + x) is stored first and the norm reads that sum.
  TensorView residual;
  TensorView y;  ///< fp32, bf16 or fp16; may be x itself (same pointer and strides), else must not overlap
};

/// Bad shapes, dtypes, strides, eps: kInvalidArgument naming tensor and value.
Status Validate(const Args& args);

/// Runs on the stream's device. A row's result does not depend on the other rows or on the number of threads.
/// kRefused on a device this build has no body for.
Status Run(Stream& stream, const Args& args);

}  // namespace fluvial::ops::norm
