// SPDX-License-Identifier: Apache-2.0
#include "ops/moe/router.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "ops/common/row_walk.h"
#include "ops/common/view_check.h"
#include "ops/moe/moe.h"

namespace fluvial::ops::moe {
namespace {

constexpr const char* kOp = "moe router";
constexpr int32_t kMaxExperts = 65536;
constexpr int32_t kMaxGroups = 256;
// Added to the sum of the weights of a sigmoid router.
constexpr float kSumEps = 1e-20f;

// The largest so far, best first. Equal values keep the order in which they came.
class Best {
 public:
  explicit Best(int32_t capacity) : capacity_(capacity) {}
  void Offer(float value, int32_t id) {
    // NaN sorts below everything, so that there are always enough to choose from.
    if (!(value == value)) value = -std::numeric_limits<float>::infinity();
    if (count_ == capacity_ && !(value > value_[count_ - 1])) return;
    int32_t at = count_ < capacity_ ? count_++ : count_ - 1;
    for (; at > 0 && value > value_[at - 1]; --at) {
      value_[at] = value_[at - 1];
      id_[at] = id_[at - 1];
    }
    value_[at] = value;
    id_[at] = id;
  }
  int32_t id(int32_t i) const { return id_[i]; }

 private:
  int32_t capacity_;
  int32_t count_ = 0;
  std::array<float, kMaxGroups> value_;
  std::array<int32_t, kMaxGroups> id_;
};
static_assert(kMaxPerToken <= kMaxGroups);

float Load(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kBF16:
      return ToFloat(static_cast<const BFloat16*>(data)[i]);
    case DType::kF16:
      return ToFloat(static_cast<const Float16*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

float Rounded(DType dtype, float x) {
  switch (dtype) {
    case DType::kBF16:
      return ToFloat(ToBFloat16(x));
    case DType::kF16:
      return ToFloat(ToFloat16(x));
    default:
      return x;
  }
}

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

void Softmax(const RouterSpec& s, const void* logits, DType dtype, int32_t* ids, float* weights) {
  // exp keeps the order, so the choice is made among the logits.
  Best best(s.per_token);
  float top = -std::numeric_limits<float>::infinity();
  for (int32_t e = 0; e < s.experts; ++e) {
    const float x = Load(logits, dtype, e);
    best.Offer(x, e);
    top = std::max(top, x);
  }
  float sum = 0;
  for (int32_t e = 0; e < s.experts; ++e) sum += std::exp(Load(logits, dtype, e) - top);
  for (int32_t k = 0; k < s.per_token; ++k) {
    ids[k] = best.id(k);
    weights[k] = std::exp(Load(logits, dtype, ids[k]) - top) / sum;
  }
}

void Sigmoids(const RouterSpec& s, const void* logits, DType dtype, const float* bias, int32_t* ids, float* weights) {
  const auto choice = [&](int32_t e) { return Sigmoid(Load(logits, dtype, e)) + (bias == nullptr ? 0.0f : bias[e]); };
  const int32_t size = s.experts / s.groups;
  std::array<bool, kMaxGroups> kept;
  kept.fill(s.groups == s.groups_kept);
  if (s.groups != s.groups_kept) {
    Best best(s.groups_kept);
    for (int32_t g = 0; g < s.groups; ++g) {
      float first = -std::numeric_limits<float>::infinity(), second = first;
      for (int32_t e = g * size; e < (g + 1) * size; ++e) {
        const float c = choice(e);
        if (c > first) {
          second = first;
          first = c;
        } else if (c > second) {
          second = c;
        }
      }
      best.Offer(size == 1 ? first : first + second, g);
    }
    for (int32_t g = 0; g < s.groups_kept; ++g) kept[static_cast<size_t>(best.id(g))] = true;
  }
  Best best(s.per_token);
  for (int32_t e = 0; e < s.experts; ++e) {
    if (kept[static_cast<size_t>(e / size)]) best.Offer(choice(e), e);
  }
  bool nan = false;  // also of an expert that was not chosen: its rank is unknown
  for (int32_t e = 0; e < s.experts; ++e) nan |= std::isnan(choice(e));
  for (int32_t k = 0; k < s.per_token; ++k) {
    ids[k] = best.id(k);
    weights[k] = nan ? std::numeric_limits<float>::quiet_NaN() : Sigmoid(Load(logits, dtype, ids[k]));
  }
}

void RouteRow(const RouterSpec& s, const void* logits, DType dtype, const float* bias, int32_t* ids, float* weights) {
  if (s.scoring == Scoring::kSoftmax) {
    Softmax(s, logits, dtype, ids, weights);
  } else {
    Sigmoids(s, logits, dtype, bias, ids, weights);
  }
  float sum = 1;
  if (s.renormalise) {
    sum = 0;
    for (int32_t k = 0; k < s.per_token; ++k) sum += weights[k];
    if (s.scoring == Scoring::kSigmoid) sum += kSumEps;
  }
  for (int32_t k = 0; k < s.per_token; ++k) weights[k] = Rounded(s.weight_type, weights[k] / sum * s.scale);
}

Status Bad(const std::string& what) { return Status::InvalidArgument(std::string(kOp) + ": " + what); }

}  // namespace

Status Validate(const RouterSpec& s) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  if (s.experts < 1 || s.experts > kMaxExperts) {
    return Bad("experts=" + text(s.experts) + ": must lie in 1.." + text(kMaxExperts));
  }
  const int32_t most = std::min(s.experts, kMaxPerToken);
  if (s.per_token < 1 || s.per_token > most) {
    return Bad("per_token=" + text(s.per_token) + ": must lie in 1.." + text(most));
  }
  if (s.groups < 1 || s.groups > kMaxGroups || s.experts % s.groups != 0) {
    return Bad("groups=" + text(s.groups) + ": must lie in 1.." + text(kMaxGroups) + " and divide the " +
               text(s.experts) + " experts");
  }
  if (s.scoring == Scoring::kSoftmax && s.groups != 1) {
    return Bad("groups=" + text(s.groups) + ": a softmax router has no groups, use 1");
  }
  if (s.groups_kept < 1 || s.groups_kept > s.groups) {
    return Bad("groups_kept=" + text(s.groups_kept) + ": must lie in 1.." + text(s.groups));
  }
  if (int64_t{s.groups_kept} * (s.experts / s.groups) < s.per_token) {
    return Bad("groups_kept=" + text(s.groups_kept) + " groups of " + text(s.experts / s.groups) +
               " experts cannot give " + text(s.per_token) + " experts per token");
  }
  if (!std::isfinite(s.scale)) return Bad("scale=" + std::to_string(s.scale) + ": must be finite");
  if (s.weight_type != DType::kF32 && s.weight_type != DType::kBF16 && s.weight_type != DType::kF16) {
    return Bad("weight_type is " + std::string(Name(s.weight_type)) + ": use fp32, bf16 or fp16");
  }
  return Status::Ok();
}

Status Route(Stream& stream, const RouterSpec& s, const RouteArgs& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(s));
  if (stream.device().kind != DeviceKind::kCpu) {
    return Status::Refused(std::string(kOp) + ": this build has no body for " + stream.device().Arch());
  }
  FLUVIAL_RETURN_IF_ERROR(CheckFloatRows(kOp, "logits", a.logits, 2));
  const int64_t tokens = a.logits.dim(0);
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOp, "logits", a.logits, a.logits.dtype, {tokens, s.experts}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOp, "ids", a.ids, DType::kI32, {tokens, s.per_token}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOp, "weights", a.weights, DType::kF32, {tokens, s.per_token}));
  const float* bias = nullptr;
  if (a.bias.rank != 0) {
    if (s.scoring == Scoring::kSoftmax) return Bad("a softmax router takes no bias");
    FLUVIAL_RETURN_IF_ERROR(CheckPacked(kOp, "bias", a.bias, DType::kF32, {s.experts}));
    bias = a.bias.as<float>();
  }
  ForEachRow(stream.pool(), RowShapeOf(a.logits), int64_t{s.experts} * 8, [&](int64_t o, int64_t t) {
    RouteRow(s, RowAt(a.logits, o, t), a.logits.dtype, bias, static_cast<int32_t*>(RowAt(a.ids, o, t)),
             static_cast<float*>(RowAt(a.weights, o, t)));
  });
  return Status::Ok();
}

}  // namespace fluvial::ops::moe
