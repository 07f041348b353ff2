// SPDX-License-Identifier: Apache-2.0
#include "ops/vision_attention/test_kit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/text_form.h"
#include "ops/vision_attention/cudnn.h"

namespace fluvial::ops::vision_attention {
namespace {

using test_kit::HostTensor;
using test_kit::Placed;
using test_kit::Random;

constexpr std::array<std::pair<std::string_view, Fill>, 4> kFills = {
    {{"random", Fill::kRandom}, {"large", Fill::kLarge}, {"mean", Fill::kMean}, {"pick", Fill::kPick}}};
constexpr std::array<std::pair<std::string_view, Layout>, 3> kLayouts = {
    {{"separate", Layout::kSeparate}, {"qkv", Layout::kQkv}, {"heads_first", Layout::kHeadsFirst}}};
constexpr int64_t kWorkspaceGuard = 256;

template <class T, size_t N>
Result<T> Named(const std::array<std::pair<std::string_view, T>, N>& table, std::string_view key,
                const std::string& text) {
  for (const auto& [name, value] : table) {
    if (name == text) return value;
  }
  std::string names;
  for (const auto& [name, value] : table) names += (names.empty() ? "" : ", ") + std::string(name);
  return Status::InvalidArgument(std::string(key) + "=" + text + ": use one of " + names);
}

template <class T, size_t N>
std::string NameOf(const std::array<std::pair<std::string_view, T>, N>& table, T value) {
  for (const auto& [name, v] : table) {
    if (v == value) return std::string(name);
  }
  return "unknown";
}

std::string Number(double x) {
  char buffer[48];
  std::snprintf(buffer, sizeof(buffer), "%.9g", x);
  return buffer;
}

/// Half a unit in the last place, relative, and the smallest step near zero, of a result rounded to `dtype`.
double StoreUnit(DType t) { return t == DType::kBF16 ? 0x1p-8 : t == DType::kF16 ? 0x1p-11 : 0x1p-24; }
double StoreFloor(DType t) { return t == DType::kF16 ? 0x1p-24 : 0x1p-126; }

/// +-1 code of a position in [0, 2^16).
double Code(int64_t position, int64_t dim) { return (position >> (dim % 16)) & 1 ? 1.0 : -1.0; }

}  // namespace

Result<Case> ParseCase(std::string_view text) {
  // The problem line's parser takes its own fields only: sort the words first.
  std::string own = "case", line;
  while (!text.empty()) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    const std::string word(text.substr(0, text.find_first_of(" \t")));
    text.remove_prefix(word.size());
    const std::string key = word.substr(0, word.find('='));
    const bool is_own =
        key == "fill" || key == "layout" || key == "pad" || key == "extra" || key == "nan" || key == "batch";
    (is_own ? own : line) += (line.empty() && !is_own ? "" : " ") + word;
  }
  Case c;
  FLUVIAL_ASSIGN_OR_RETURN(c.line, ParseProblemLine(line));
  FLUVIAL_ASSIGN_OR_RETURN(TextFields f, TextFields::Parse(own));
  if (f.Has("fill")) {
    FLUVIAL_ASSIGN_OR_RETURN(c.fill, Named(kFills, "fill", f.Take("fill")));
  }
  if (f.Has("layout")) {
    FLUVIAL_ASSIGN_OR_RETURN(c.layout, Named(kLayouts, "layout", f.Take("layout")));
  }
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t pad, f.TakeInt("pad", 0));
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t extra, f.TakeInt("extra", 0));
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t nan, f.TakeInt("nan", -1));
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t batch, f.TakeInt("batch", 0));
  FLUVIAL_RETURN_IF_ERROR(f.Finish());
  const Problem& p = c.line.problem;
  if (pad < 0 || pad > 4096 || extra < 0 || extra > 4096 || nan < -1 || nan >= p.sequences || batch < 0 || batch > 1 ||
      (p.padded != 0 && (extra != 0 || batch != 0))) {
    return Status::InvalidArgument(
        "case: pad= and extra= are 0..4096, nan= a sequence, batch= 0 or 1; padded tensors take no extra= and no "
        "batch=");
  }
  c.pad = static_cast<int32_t>(pad);
  c.extra = static_cast<int32_t>(extra);
  c.nan = static_cast<int32_t>(nan);
  c.batch = batch == 1;
  return c;
}

std::string FormatCase(const Case& c) {
  std::string s = FormatProblemLine(c.line) + " fill=" + NameOf(kFills, c.fill);
  if (c.layout != Layout::kSeparate) s += " layout=" + NameOf(kLayouts, c.layout);
  if (c.pad != 0) s += " pad=" + std::to_string(c.pad);
  if (c.extra != 0) s += " extra=" + std::to_string(c.extra);
  if (c.nan >= 0) s += " nan=" + std::to_string(c.nan);
  if (c.batch) s += " batch=1";
  return s;
}

Precision PrecisionOf(const VisionBackend& backend, DType io) {
  Precision p;
  const bool cuda = backend.name.starts_with("cuda") || backend.name == "cudnn";
  if (backend.name == "cpu_bf16" || cuda) {
    p.exponential = 0x1p-17;  // polynomial of degree 4; ex2.approx is better
    p.probability = io == DType::kF16 && cuda ? 0x1p-11 : 0x1p-8;
    if (io == DType::kF32) p.probability = 0;
  }
  if (cuda) {
    p.sum = 0x1p-22;  // tensor cores truncate
    p.divide = 0x1p-21;
  }
  return p;
}

PreparedCase PreparedCase::Make(const Case& c, ThreadPool& pool) {
  PreparedCase prepared;
  prepared.case_ = c;
  prepared.problem_ = c.line.problem;
  prepared.problem_.tokens += c.extra;
  prepared.offsets_ = {0};
  for (const int64_t n : c.line.lengths) prepared.offsets_.push_back(prepared.offsets_.back() + n);
  prepared.Build();
  prepared.Evaluate(pool);
  return prepared;
}

int64_t PreparedCase::OutRow(int64_t n, int64_t i) const {
  return problem_.padded != 0 ? n * problem_.padded + i : offsets_[n] + i;
}

void PreparedCase::Build() {
  const Problem& p = problem_;
  const int64_t rows = p.padded != 0 ? p.sequences * p.padded : p.tokens, h = p.heads, d = p.d;
  const auto size = static_cast<int64_t>(SizeOf(p.io)), step = std::max<int64_t>(1, p.alignment / size);
  auto pitch = [&](int64_t elements) { return (elements + case_.pad + step - 1) / step * step; };
  const auto align = static_cast<size_t>(p.alignment);
  if (case_.layout == Layout::kQkv) {
    inputs_.q = HostTensor(p.io, {rows, 3, h, d}, pitch(3 * h * d), align);
  } else if (case_.layout == Layout::kHeadsFirst) {
    for (HostTensor* t : {&inputs_.q, &inputs_.k, &inputs_.v})
      *t = HostTensor(p.io, {h, rows, d}, pitch(rows * d), align);
  } else {
    int64_t more = 0;  // each of its own pitch
    for (HostTensor* t : {&inputs_.q, &inputs_.k, &inputs_.v}) {
      *t = HostTensor(p.io, {rows, h, d}, pitch(h * d + (case_.pad != 0 ? 8 * more++ : 0)), align);
    }
  }
  inputs_.out = HostTensor(p.io, {rows, h, d}, pitch(h * d), align);
  inputs_.lse = HostTensor(DType::kF32, {rows, h}, h + case_.pad);

  const Args a = Views(inputs_.q.view(), inputs_.k.defined() ? inputs_.k.view() : TensorView(),
                       inputs_.v.defined() ? inputs_.v.view() : TensorView(), inputs_.out.view(), inputs_.lse.view());
  Random random(case_.line.seed);
  // A power of two that puts every other key at least 128 behind, which is nothing in fp32.
  const double loud = std::exp2(std::ceil(std::log2(64 / p.scale)));
  for (int64_t n = 0; n < p.sequences; ++n) {
    const int64_t length = offsets_[n + 1] - offsets_[n];
    for (int64_t i = 0; i < length; ++i) {
      for (int64_t head = 0; head < h; ++head) {
        for (int which = 0; which < 3; ++which) {
          const TensorView& t = which == 0 ? a.q : which == 1 ? a.k : a.v;
          const int64_t at = StridesOf(p, t).At(n, offsets_[n], i, head);
          for (int64_t c = 0; c < d; ++c) {
            double x = random.Normal();
            if (case_.fill == Fill::kLarge && which < 2) x *= 8;
            const bool whole = case_.fill == Fill::kMean || case_.fill == Fill::kPick;
            if (whole && which == 2) x = static_cast<double>(random.Int(-8, 8));
            if (case_.fill == Fill::kMean && which == 0) x = 0;
            if (case_.fill == Fill::kPick && which == 0) x = loud * Code((i * 31 + head * 17) % length, c);
            if (case_.fill == Fill::kPick && which == 1) x = Code(i, c);
            if (n == case_.nan) x = std::nan("");
            StoreFromDouble(t.data, p.io, at + c, x);
          }
        }
      }
    }
  }
}

Args PreparedCase::Views(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
                         const TensorView& lse) const {
  const Problem& p = problem_;
  const int64_t rows = p.padded != 0 ? p.sequences * p.padded : p.tokens;
  auto shaped = [&](void* data, DType dtype, int64_t token, int64_t head, bool has_d) {
    TensorView t;
    t.data = data;
    t.dtype = dtype;
    auto add = [&](int64_t dim, int64_t stride) {
      t.dims[t.rank] = dim;
      t.strides[t.rank++] = stride;
    };
    if (p.padded != 0) {
      add(p.sequences, p.padded * token);
      add(p.padded, token);
    } else {
      if (case_.batch) add(1, rows * token);
      add(rows, token);
    }
    add(p.heads, head);
    if (has_d) add(p.d, 1);
    return t;
  };
  Args a;
  if (case_.layout == Layout::kQkv) {
    TensorView* to[3] = {&a.q, &a.k, &a.v};
    const auto third = static_cast<int64_t>(SizeOf(p.io)) * p.heads * p.d;
    for (int i = 0; i < 3; ++i) {
      *to[i] = shaped(static_cast<char*>(q.data) + i * third, p.io, q.strides[0], p.d, true);
    }
  } else {
    const std::pair<TensorView*, const TensorView*> pairs[] = {{&a.q, &q}, {&a.k, &k}, {&a.v, &v}};
    for (const auto& [to, from] : pairs) {
      *to = case_.layout == Layout::kHeadsFirst ? shaped(from->data, p.io, p.d, from->strides[0], true)
                                                : shaped(from->data, p.io, from->strides[0], p.d, true);
    }
  }
  a.out = shaped(out.data, p.io, out.strides[0], p.d, true);
  if (p.lse) a.lse = shaped(lse.data, DType::kF32, lse.strides[0], 1, false);
  return a;
}

void PreparedCase::Evaluate(ThreadPool& pool) {
  const Problem& p = problem_;
  const int64_t tokens = offsets_.back(), h = p.heads, d = p.d;
  const auto rows = static_cast<size_t>(tokens * h);
  out_.assign(rows * static_cast<size_t>(d), 0);
  mean_ = out_;
  lse_.assign(rows, 0);
  products_ = scores_ = lse_;
  const Args a = Views(inputs_.q.view(), inputs_.k.defined() ? inputs_.k.view() : TensorView(),
                       inputs_.v.defined() ? inputs_.v.view() : TensorView(), inputs_.out.view(), inputs_.lse.view());
  for (int64_t n = 0; n < p.sequences; ++n) {
    const int64_t first = offsets_[n], length = offsets_[n + 1] - first;
    pool.ParallelFor(h, [&](int64_t head, int) {
      auto load = [&](const TensorView& t) {
        const RowStrides s = StridesOf(p, t);
        std::vector<double> x(static_cast<size_t>(length * d));
        for (int64_t i = 0; i < length; ++i) {
          for (int64_t c = 0; c < d; ++c) x[i * d + c] = LoadAsDouble(t.data, p.io, s.At(n, first, i, head) + c);
        }
        return x;
      };
      const std::vector<double> q = load(a.q), k = load(a.k), v = load(a.v);
      std::vector<double> s(static_cast<size_t>(length));
      for (int64_t i = 0; i < length; ++i) {
        const size_t row = static_cast<size_t>((first + i) * h + head);
        double largest = -INFINITY;
        for (int64_t j = 0; j < length; ++j) {
          double dot = 0, magnitude = 0;
          for (int64_t c = 0; c < d; ++c) {
            const double x = q[i * d + c] * k[j * d + c];
            dot += x;
            magnitude += std::abs(x);
          }
          s[j] = dot * p.scale;
          largest = std::max(largest, s[j]);
          products_[row] = std::max(products_[row], magnitude * p.scale);
          scores_[row] = std::max(scores_[row], std::abs(s[j]));
        }
        double sum = 0;
        double* out = out_.data() + row * d;
        double* mean = mean_.data() + row * d;
        for (int64_t j = 0; j < length; ++j) {
          const double weight = std::exp(s[j] - largest);
          sum += weight;
          for (int64_t c = 0; c < d; ++c) {
            out[c] += weight * v[j * d + c];
            mean[c] += weight * std::abs(v[j * d + c]);
          }
        }
        for (int64_t c = 0; c < d; ++c) {
          out[c] /= sum;
          mean[c] /= sum;
        }
        lse_[row] = largest + std::log(sum);
      }
    });
  }
}

Result<PreparedCase::Tensors> PreparedCase::RunOnce(Stream& stream, const VisionBackend& backend,
                                                    bool* guard_intact) const {
  const Problem& p = problem_;
  Tensors got = inputs_;
  HostTensor* const hosts[5] = {&got.q, &got.k, &got.v, &got.out, &got.lse};
  std::array<std::optional<Placed>, 5> placed;
  std::array<TensorView, 5> views;
  for (size_t i = 0; i < placed.size(); ++i) {
    if (!hosts[i]->defined()) continue;
    FLUVIAL_ASSIGN_OR_RETURN(placed[i], Placed::Make(stream, *hosts[i]));
    views[i] = placed[i]->view();
  }
  Args a = Views(views[0], views[1], views[2], views[3], views[4]);
  FLUVIAL_ASSIGN_OR_RETURN(const SequencePlan plan, SequencePlan::Make(stream, {case_.line.lengths, {}, {}}));
  a.plan = &plan;
  std::optional<RaggedPlan> ragged;
  if (backend.name == "cudnn") {
    FLUVIAL_ASSIGN_OR_RETURN(
        ragged, RaggedPlan::Make(stream, case_.line.lengths, p.padded, TokenStridesOf(p, a), CudnnRules()));
    a.ragged = &*ragged;
  }
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  const DeviceInfo& device = stream.device();
  // A backend must not rely on zeros in its workspace, nor write behind the bytes it asked for.
  const size_t bytes = backend.workspace_bytes(p, device);
  std::vector<unsigned char> poison(bytes + kWorkspaceGuard, test_kit::kPoison);
  FLUVIAL_ASSIGN_OR_RETURN(const Buffer workspace, Buffer::Allocate(device.kind, poison.size(), device.index));
  FLUVIAL_RETURN_IF_ERROR(Copy(stream, workspace.data(), device.kind, poison.data(), DeviceKind::kCpu, poison.size()));
  FLUVIAL_RETURN_IF_ERROR(backend.run(stream, p, a, {workspace.data(), bytes}));
  FLUVIAL_RETURN_IF_ERROR(stream.Synchronize());
  FLUVIAL_RETURN_IF_ERROR(Copy(stream, poison.data(), DeviceKind::kCpu,
                               static_cast<const char*>(workspace.data()) + bytes, device.kind, kWorkspaceGuard));
  FLUVIAL_RETURN_IF_ERROR(stream.Synchronize());
  *guard_intact = std::all_of(poison.begin(), poison.begin() + kWorkspaceGuard,
                              [](unsigned char b) { return b == test_kit::kPoison; });
  for (size_t i = 0; i < placed.size(); ++i) {
    if (placed[i]) FLUVIAL_RETURN_IF_ERROR(placed[i]->Fetch(stream, hosts[i]));
  }
  return got;
}

Result<Verdict> PreparedCase::Check(Stream& stream, const VisionBackend& backend, const Precision& precision) const {
  bool guard = true, guard_again = true;
  FLUVIAL_ASSIGN_OR_RETURN(const Tensors got, RunOnce(stream, backend, &guard));
  FLUVIAL_ASSIGN_OR_RETURN(const Tensors again, RunOnce(stream, backend, &guard_again));
  Verdict verdict = Compare(got, precision);
  const auto fail = [&](const std::string& why) {
    if (verdict.passed) verdict.why = why;
    verdict.passed = false;
  };
  const auto same = [](const HostTensor& x, const HostTensor& y) {
    return std::equal(x.bytes().begin(), x.bytes().end(), y.bytes().begin(), y.bytes().end());
  };
  // The spoiled sequence's NaNs need not have the same bits.
  if (case_.nan < 0 && (!same(got.out, again.out) || !same(got.lse, again.lse))) {
    fail("a second run gave other bits");
  }
  if (!guard || !guard_again) fail("memory behind the workspace was written");
  if (!same(got.q, inputs_.q) || !same(got.k, inputs_.k) || !same(got.v, inputs_.v)) fail("an input was changed");
  return verdict;
}

Verdict PreparedCase::Compare(const Tensors& got, const Precision& precision) const {
  const Problem& p = problem_;
  Verdict verdict;
  const auto fail = [&](const std::string& why) {
    if (verdict.passed) verdict.why = why;
    verdict.passed = false;
  };
  const bool exact = precision.divide == 0 && (case_.fill == Fill::kMean || case_.fill == Fill::kPick);
  const auto judge = [&](const char* name, int64_t n, int64_t i, int64_t head, int64_t c, double value, double expected,
                         double bound) {
    const double difference = value == expected ? 0 : std::abs(value - expected);
    if (bound > 0) verdict.worst_ratio = std::max(verdict.worst_ratio, difference / bound);
    if (difference <= bound) return;  // false for NaN
    fail(std::string(name) + " of sequence " + std::to_string(n) + " token " + std::to_string(i) + " head " +
         std::to_string(head) + " dim " + std::to_string(c) + " is " + Number(value) + ", reference " +
         Number(expected) + ", bound " + Number(bound));
  };
  std::vector<char> written(static_cast<size_t>(got.out.rows()), 0);
  for (int64_t n = 0; n < p.sequences; ++n) {
    const int64_t length = offsets_[n + 1] - offsets_[n];
    for (int64_t i = 0; i < length; ++i) {
      const int64_t to = OutRow(n, i);
      written[to] = 1;
      if (n == case_.nan) continue;
      for (int64_t head = 0; head < p.heads; ++head) {
        const size_t row = static_cast<size_t>((offsets_[n] + i) * p.heads + head);
        // Scores: a chain of d products, then a few roundings of numbers up to twice the largest score.
        const double score = products_[row] * (p.d + 2) * precision.sum + 8 * 0x1p-24 * scores_[row];
        const double sums = static_cast<double>(length + 80) * precision.sum;
        const double weight = std::expm1(2 * score) + precision.exponential + sums;
        for (int64_t c = 0; c < p.d; ++c) {
          const double expected = out_[row * p.d + c];
          const double value = got.out.Get(to, head * p.d + c);
          if (exact) {
            uint32_t rounded = 0;
            StoreFromDouble(&rounded, p.io, 0, expected);
            judge("out", n, i, head, c, value, LoadAsDouble(&rounded, p.io, 0), 0);
            continue;
          }
          const double bound = mean_[row * p.d + c] * (weight + precision.probability) +
                               (weight + precision.divide + StoreUnit(p.io)) * std::abs(expected) + StoreFloor(p.io);
          judge("out", n, i, head, c, value, expected, bound);
        }
        if (!p.lse) continue;
        const double bound = score + weight + 0x1p-22 * std::abs(lse_[row]) + 0x1p-22;
        judge("lse", n, i, head, 0, got.lse.Get(to, head), lse_[row], bound);
      }
    }
  }
  for (int64_t r = 0; r < got.out.rows(); ++r) {
    const auto untouched = [](std::span<const unsigned char> bytes) {
      return std::all_of(bytes.begin(), bytes.end(), [](unsigned char b) { return b == test_kit::kPoison; });
    };
    if (written[r] == 0 && !untouched(got.out.RowBytes(r))) {
      fail("out row " + std::to_string(r) + " of no sequence was written");
    }
    if ((written[r] == 0 || !p.lse) && !untouched(got.lse.RowBytes(r))) {
      fail("lse row " + std::to_string(r) + " was written");
    }
  }
  if (!got.out.PoisonIntact() || !got.lse.PoisonIntact()) fail("memory between rows was written");
  return verdict;
}

}  // namespace fluvial::ops::vision_attention
