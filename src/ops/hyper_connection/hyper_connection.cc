// SPDX-License-Identifier: Apache-2.0
#include "ops/hyper_connection/hyper_connection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string>

#include "ops/common/view_check.h"
#include "ops/hyper_connection/rows.h"

namespace fluvial::ops::hyper_connection {
namespace {

constexpr const char* kName = "hyper_connection";
constexpr int64_t kTokens = 4;  // per task

Status Bad(const std::string& what) { return Status::InvalidArgument(std::string(kName) + ": " + what); }

Status CheckSpec(Stream& stream, const Spec& s) {
  if (s.streams < 1 || s.streams > kMaxStreams) {
    return Bad("streams is " + std::to_string(s.streams) + ", it must be 1.." + std::to_string(kMaxStreams));
  }
  if (s.iterations < 1) return Bad("iterations is " + std::to_string(s.iterations) + ", it must be at least 1");
  if (!(s.norm_eps > 0) || !(s.eps >= 0)) return Bad("norm_eps must be above 0 and eps not negative");
  if (stream.device().kind == DeviceKind::kCpu) return Status::Ok();
  return Status::Refused(std::string(kName) + ": this build has no body for " + stream.device().Arch());
}

/// Streams and one row per token of the same type.
Status CheckRows(const Spec& s, const TensorView& streams, const char* name, const TensorView& row) {
  if (!IsFloating(streams.dtype)) return Bad("streams are " + streams.ToString() + ": use fp32, bf16 or fp16");
  const int64_t tokens = streams.rank == 2 ? streams.dims[0] : 0, h = row.rank == 2 ? row.dims[1] : 0;
  FLUVIAL_RETURN_IF_ERROR(CheckView(kName, "streams", streams, streams.dtype, {tokens, s.streams * h}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kName, name, row, streams.dtype, {tokens, h}));
  if (MayOverlap(streams, row)) return Bad(std::string(name) + " overlaps streams: give it memory of its own");
  return Status::Ok();
}

char* RowOf(const TensorView& v, int64_t t) {
  return static_cast<char*>(v.data) + t * v.strides[0] * static_cast<int64_t>(SizeOf(v.dtype));
}

template <class Fn>
void ForTokens(Stream& stream, int64_t tokens, const Fn& fn) {
  stream.pool().ParallelFor((tokens + kTokens - 1) / kTokens, [&](int64_t task, int) {
    for (int64_t t = task * kTokens; t < std::min(tokens, (task + 1) * kTokens); ++t) fn(t);
  });
}

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

/// pre, post and C of one token; m is overwritten.
void RouteToken(const Spec& spec, float rstd, const float* z, const float* base, const float* scale, float* pre,
                float* post, float* mix) {
  const int32_t n = spec.streams;
  for (int32_t s = 0; s < n; ++s) {
    pre[s] = Sigmoid(z[s] * rstd * scale[0] + base[s]) + spec.eps;
    post[s] = 2.0f * Sigmoid(z[n + s] * rstd * scale[1] + base[n + s]);
  }
  for (int32_t s = 0; s < n; ++s) {
    float* row = mix + s * n;
    float largest = -INFINITY, sum = 0;
    for (int32_t t = 0; t < n; ++t) {
      row[t] = z[2 * n + s * n + t] * rstd * scale[2] + base[2 * n + s * n + t];
      largest = std::max(largest, row[t]);
    }
    for (int32_t t = 0; t < n; ++t) sum += row[t] = std::exp(row[t] - largest);
    for (int32_t t = 0; t < n; ++t) row[t] = row[t] / sum + spec.eps;
  }
  const auto divide = [&](int32_t outer, int32_t inner) {  // by the sums over the index of stride `inner`
    for (int32_t a = 0; a < n; ++a) {
      float sum = spec.eps;
      for (int32_t b = 0; b < n; ++b) sum += mix[a * outer + b * inner];
      for (int32_t b = 0; b < n; ++b) mix[a * outer + b * inner] /= sum;
    }
  };
  divide(1, n);
  for (int32_t i = 1; i < spec.iterations; ++i) {
    divide(n, 1);
    divide(1, n);
  }
}

float RoundTo(DType dtype, float x) {
  uint32_t storage = 0;
  StoreFromDouble(&storage, dtype, 0, x);
  return static_cast<float>(LoadAsDouble(&storage, dtype, 0));
}

}  // namespace

Status Collapse(Stream& stream, const Spec& spec, const CollapseArgs& a) {
  FLUVIAL_RETURN_IF_ERROR(CheckSpec(stream, spec));
  FLUVIAL_RETURN_IF_ERROR(CheckRows(spec, a.streams, "x", a.x));
  const int64_t tokens = a.x.dims[0], h = a.x.dims[1], n = spec.streams;
  FLUVIAL_RETURN_IF_ERROR(CheckView(kName, "projected", a.projected, DType::kF32, {tokens, spec.weights()}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kName, "base", a.base, DType::kF32, {spec.weights()}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kName, "scale", a.scale, DType::kF32, {3}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kName, "post", a.post, DType::kF32, {tokens, n}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kName, "mix", a.mix, DType::kF32, {tokens, n * n}));
  ForTokens(stream, tokens, [&](int64_t t) {
    const void* x = RowOf(a.streams, t);
    const float mean = SumOfSquares(x, a.streams.dtype, n * h) / static_cast<float>(n * h);
    float pre[kMaxStreams];
    RouteToken(spec, 1.0f / std::sqrt(mean + spec.norm_eps), reinterpret_cast<float*>(RowOf(a.projected, t)),
               a.base.as<float>(), a.scale.as<float>(), pre, reinterpret_cast<float*>(RowOf(a.post, t)),
               reinterpret_cast<float*>(RowOf(a.mix, t)));
    Combine(x, a.streams.dtype, pre, spec.streams, h, RowOf(a.x, t));
  });
  return Status::Ok();
}

Status Expand(Stream& stream, const Spec& spec, const ExpandArgs& a) {
  FLUVIAL_RETURN_IF_ERROR(CheckSpec(stream, spec));
  FLUVIAL_RETURN_IF_ERROR(CheckRows(spec, a.streams, "y", a.y));
  const int64_t tokens = a.y.dims[0], n = spec.streams;
  FLUVIAL_RETURN_IF_ERROR(CheckView(kName, "post", a.post, DType::kF32, {tokens, n}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kName, "mix", a.mix, DType::kF32, {tokens, n * n}));
  const DType dtype = a.streams.dtype;
  ForTokens(stream, tokens, [&](int64_t t) {
    float post[kMaxStreams], mix[kMaxStreams * kMaxStreams];
    for (int64_t i = 0; i < n; ++i) post[i] = RoundTo(dtype, reinterpret_cast<float*>(RowOf(a.post, t))[i]);
    for (int64_t i = 0; i < n * n; ++i) mix[i] = RoundTo(dtype, reinterpret_cast<float*>(RowOf(a.mix, t))[i]);
    Mix(RowOf(a.streams, t), dtype, post, mix, RowOf(a.y, t), spec.streams, a.y.dims[1]);
  });
  return Status::Ok();
}

Status Spread(Stream& stream, const Spec& spec, const TensorView& x, const TensorView& streams) {
  FLUVIAL_RETURN_IF_ERROR(CheckSpec(stream, spec));
  FLUVIAL_RETURN_IF_ERROR(CheckRows(spec, streams, "x", x));
  const size_t bytes = static_cast<size_t>(x.dims[1]) * SizeOf(x.dtype);
  ForTokens(stream, x.dims[0], [&](int64_t t) {
    for (int32_t s = 0; s < spec.streams; ++s) {
      std::memcpy(RowOf(streams, t) + static_cast<size_t>(s) * bytes, RowOf(x, t), bytes);
    }
  });
  return Status::Ok();
}

Status Mean(Stream& stream, const Spec& spec, const TensorView& streams, const TensorView& y) {
  FLUVIAL_RETURN_IF_ERROR(CheckSpec(stream, spec));
  FLUVIAL_RETURN_IF_ERROR(CheckRows(spec, streams, "y", y));
  float weight[kMaxStreams];
  std::fill_n(weight, kMaxStreams, 1.0f / static_cast<float>(spec.streams));
  ForTokens(stream, y.dims[0], [&](int64_t t) {
    Combine(RowOf(streams, t), streams.dtype, weight, spec.streams, y.dims[1], RowOf(y, t));
  });
  return Status::Ok();
}

}  // namespace fluvial::ops::hyper_connection
