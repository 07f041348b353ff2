// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling/scan.h"

#include <algorithm>
#include <functional>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sampling/scan.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/common/simd_io-inl.h"
#include "ops/common/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::sampling {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(D())); }

int64_t FirstEqualT(const float* x, int64_t n, float value) {
  const D d;
  const auto v = hn::Set(d, value);
  int64_t i = 0;
  for (; i + Lanes() <= n; i += Lanes()) {
    const intptr_t at = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), v));
    if (at >= 0) return i + at;
  }
  for (; i < n; ++i) {
    if (x[i] == value) return i;
  }
  return n;
}

MaxScan FindMaxT(const float* x, int64_t n) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::Set(di, 0x7fffffff);
  MaxScan out;
  out.max = x[0];
  int64_t best_block = 0;
  auto largest_bits = hn::Zero(di);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    auto max = hn::Set(d, x[begin]);
    int64_t i = begin;
    for (; i + Lanes() <= end; i += Lanes()) {
      const auto v = hn::LoadU(d, x + i);
      max = hn::Max(max, v);
      largest_bits = hn::Max(largest_bits, hn::And(hn::BitCast(di, v), magnitude));
    }
    float block_max = hn::GetLane(hn::MaxOfLanes(d, max));
    for (; i < end; ++i) {
      out.nan |= x[i] != x[i];
      block_max = std::max(block_max, x[i]);
    }
    if (block_max > out.max) {
      out.max = block_max;
      best_block = begin;
    }
  }
  out.nan |= hn::GetLane(hn::MaxOfLanes(di, largest_bits)) > 0x7f800000;
  out.index = best_block + FirstEqualT(x + best_block, std::min(kBlock, n - best_block), out.max);
  return out;
}

int64_t CountGreaterT(const float* x, int64_t n, float value) {
  const D d;
  const auto v = hn::Set(d, value);
  int64_t i = 0, count = 0;
  for (; i + Lanes() <= n; i += Lanes()) {
    count += static_cast<int64_t>(hn::CountTrue(d, hn::Gt(hn::LoadU(d, x + i), v)));
  }
  for (; i < n; ++i) count += x[i] > value;
  return count;
}

void CollectAtLeastT(const float* x, int64_t n, float value, std::vector<int32_t>* out) {
  const D d;
  const auto v = hn::Set(d, value);
  int64_t i = 0;
  for (; i + Lanes() <= n; i += Lanes()) {
    if (hn::AllFalse(d, hn::Ge(hn::LoadU(d, x + i), v))) continue;
    for (int64_t j = i; j < i + Lanes(); ++j) {
      if (x[j] >= value) out->push_back(static_cast<int32_t>(j));
    }
  }
  for (; i < n; ++i) {
    if (x[i] >= value) out->push_back(static_cast<int32_t>(i));
  }
}

void CollectBetweenT(const float* x, int64_t n, float low, float high, std::vector<int32_t>* out) {
  const D d;
  const auto vl = hn::Set(d, low), vh = hn::Set(d, high);
  int64_t i = 0;
  for (; i + Lanes() <= n; i += Lanes()) {
    const auto v = hn::LoadU(d, x + i);
    if (hn::AllFalse(d, hn::And(hn::Ge(v, vl), hn::Lt(v, vh)))) continue;
    for (int64_t j = i; j < i + Lanes(); ++j) {
      if (x[j] >= low && x[j] < high) out->push_back(static_cast<int32_t>(j));
    }
  }
  for (; i < n; ++i) {
    if (x[i] >= low && x[i] < high) out->push_back(static_cast<int32_t>(i));
  }
}

float KthLargestT(const float* x, int64_t n, int64_t k, std::vector<float>* buffer) {
  const D d;
  const int64_t capacity = 4 * k + 1024;
  buffer->resize(static_cast<size_t>(capacity + Lanes()));
  float* const kept = buffer->data();
  int64_t count = 0;
  float threshold = -std::numeric_limits<float>::infinity();
  // Leaves the k largest seen so far; what is not larger than the smallest of them can never be needed again.
  auto shrink = [&] {
    std::nth_element(kept, kept + (k - 1), kept + count, std::greater<float>());
    threshold = kept[k - 1];
    count = k;
  };
  int64_t i = 0;
  for (; i + Lanes() <= n; i += Lanes()) {
    const auto v = hn::LoadU(d, x + i);
    const auto larger = hn::Gt(v, hn::Set(d, threshold));
    if (hn::AllFalse(d, larger)) continue;
    count += static_cast<int64_t>(hn::CompressStore(v, larger, d, kept + count));
    if (count >= capacity) shrink();
  }
  for (; i < n; ++i) {
    if (!(x[i] > threshold)) continue;
    kept[count++] = x[i];
    if (count >= capacity) shrink();
  }
  if (count < k) return -std::numeric_limits<float>::infinity();
  shrink();
  return threshold;
}

/// Sum of the weights of x[0..n), n <= kBlock; stores them when w is not null.
HWY_INLINE double ExpBlock(const float* x, int64_t n, float shift, float inverse, float* w) {
  const D d;
  const auto vs = hn::Set(d, shift), vi = hn::Set(d, inverse);
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + Lanes() <= n; i += Lanes()) {
    const auto e = fs::Exp(d, hn::Mul(hn::Sub(hn::LoadU(d, x + i), vs), vi));
    if (w != nullptr) hn::StoreU(e, d, w + i);
    sum = hn::Add(sum, e);
  }
  double total = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  if (i < n) {
    const size_t left = static_cast<size_t>(n - i);
    HWY_ALIGN float tail[hn::MaxLanes(d)];
    hn::StoreU(fs::Exp(d, hn::Mul(hn::Sub(fs::LoadF32Tail(d, x + i, left), vs), vi)), d, tail);
    for (size_t j = 0; j < left; ++j) {
      if (w != nullptr) w[i + static_cast<int64_t>(j)] = tail[j];
      total += static_cast<double>(tail[j]);
    }
  }
  return total;
}

double SumExpT(const float* x, int64_t n, float shift, float inverse) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kBlock) total += ExpBlock(x + i, std::min(kBlock, n - i), shift, inverse, nullptr);
  return total;
}

void ExpBlocksT(const float* x, int64_t n, float shift, float inverse, float* w, double* block_sums) {
  for (int64_t i = 0; i < n; i += kBlock) {
    block_sums[i / kBlock] = ExpBlock(x + i, std::min(kBlock, n - i), shift, inverse, w + i);
  }
}

void MassAtLeastT(const float* x, const float* w, int64_t n, const float* threshold, double* mass) {
  const D d;
  for (int t = 0; t < kThresholds; ++t) mass[t] = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    hn::Vec<D> sum[kThresholds];
    for (int t = 0; t < kThresholds; ++t) sum[t] = hn::Zero(d);
    int64_t i = begin;
    for (; i + Lanes() <= end; i += Lanes()) {
      const auto v = hn::LoadU(d, x + i), weight = hn::LoadU(d, w + i);
      for (int t = 0; t < kThresholds; ++t) {
        sum[t] = hn::Add(sum[t], hn::IfThenElseZero(hn::Ge(v, hn::Set(d, threshold[t])), weight));
      }
    }
    for (int t = 0; t < kThresholds; ++t) {
      mass[t] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum[t])));
      for (int64_t j = i; j < end; ++j) mass[t] += x[j] >= threshold[t] ? static_cast<double>(w[j]) : 0.0;
    }
  }
}

void KeptBlocksT(const float* x, const float* w, int64_t n, const Boundary& boundary, double* block_sums) {
  const D d;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    double total = 0;
    int64_t i = begin;
    // The block with the boundary token goes one by one: ties before it stay, ties behind it go.
    const bool ties = end <= boundary.id, mixed = begin <= boundary.id && boundary.id < end;
    if (!mixed) {
      auto sum = hn::Zero(d);
      const auto v = hn::Set(d, boundary.score), least = hn::Set(d, boundary.min_weight);
      for (; i + Lanes() <= end; i += Lanes()) {
        const auto y = hn::LoadU(d, x + i), weight = hn::LoadU(d, w + i);
        const auto kept = hn::And(ties ? hn::Ge(y, v) : hn::Gt(y, v), hn::Ge(weight, least));
        sum = hn::Add(sum, hn::IfThenElseZero(kept, weight));
      }
      total = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    }
    for (; i < end; ++i) {
      if (boundary.Keeps(x[i], w[i], i)) total += static_cast<double>(w[i]);
    }
    block_sums[begin / kBlock] = total;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::sampling
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::sampling {

HWY_EXPORT(FindMaxT);
HWY_EXPORT(FirstEqualT);
HWY_EXPORT(CountGreaterT);
HWY_EXPORT(CollectAtLeastT);
HWY_EXPORT(CollectBetweenT);
HWY_EXPORT(KthLargestT);
HWY_EXPORT(SumExpT);
HWY_EXPORT(ExpBlocksT);
HWY_EXPORT(MassAtLeastT);
HWY_EXPORT(KeptBlocksT);

MaxScan FindMax(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(FindMaxT)(x, n); }
int64_t FirstEqual(const float* x, int64_t n, float value) { return HWY_DYNAMIC_DISPATCH(FirstEqualT)(x, n, value); }
int64_t CountGreater(const float* x, int64_t n, float value) {
  return HWY_DYNAMIC_DISPATCH(CountGreaterT)(x, n, value);
}
void CollectAtLeast(const float* x, int64_t n, float value, std::vector<int32_t>* out) {
  HWY_DYNAMIC_DISPATCH(CollectAtLeastT)(x, n, value, out);
}
void CollectBetween(const float* x, int64_t n, float low, float high, std::vector<int32_t>* out) {
  HWY_DYNAMIC_DISPATCH(CollectBetweenT)(x, n, low, high, out);
}
void MassAtLeast(const float* x, const float* w, int64_t n, const float (&threshold)[kThresholds],
                 double (&mass)[kThresholds]) {
  HWY_DYNAMIC_DISPATCH(MassAtLeastT)(x, w, n, threshold, mass);
}
void KeptBlocks(const float* x, const float* w, int64_t n, const Boundary& boundary, double* block_sums) {
  HWY_DYNAMIC_DISPATCH(KeptBlocksT)(x, w, n, boundary, block_sums);
}
float KthLargest(const float* x, int64_t n, int64_t k, std::vector<float>* buffer) {
  return HWY_DYNAMIC_DISPATCH(KthLargestT)(x, n, k, buffer);
}
double SumExp(const float* x, int64_t n, float shift, float inverse) {
  return HWY_DYNAMIC_DISPATCH(SumExpT)(x, n, shift, inverse);
}
void ExpBlocks(const float* x, int64_t n, float shift, float inverse, float* w, double* block_sums) {
  HWY_DYNAMIC_DISPATCH(ExpBlocksT)(x, n, shift, inverse, w, block_sums);
}

}  // namespace fluvial::ops::sampling
#endif
