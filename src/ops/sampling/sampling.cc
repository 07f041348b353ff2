// SPDX-License-Identifier: Apache-2.0
// The sampler: a few vector passes over the row, then work on the tokens that survive.
#include "ops/sampling/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/sampling/philox.h"
#include "ops/sampling/processors.h"
#include "ops/sampling/scan.h"

namespace fluvial::ops::sampling {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Candidate {
  float score = 0;
  int32_t id = 0;
  double weight = 0;
};

/// Falling score, rising id: the order of step 7.
bool Before(const Candidate& a, const Candidate& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; }

/// One worker's memory, reused from row to row.
struct Scratch {
  std::vector<float> scores, weights, buffer;
  std::vector<double> block_sums;
  std::vector<int32_t> ids;
  std::vector<Candidate> candidates;
};

/// Step 7 for a row without top-k. A sort of the vocabulary would cost more than the rest of the step, so the score at
/// which the mass is reached is bracketed by passes that each measure the mass above kThresholds scores; only what is
/// left between the ends of the bracket is sorted. `total` is the mass of all weights.
Boundary TopPBoundary(const float* scores, const float* weights, int64_t vocab, float max, float temperature,
                      double mass, double total, Scratch& w) {
  // All tokens lighter than (total - mass) / vocab together weigh less than total - mass: they are outside.
  const double lightest = (total - mass) / static_cast<double>(vocab);
  float low = lightest > 0 ? max + temperature * static_cast<float>(std::log(lightest)) : kMinusInfinity;
  low = std::max(low - std::abs(low) * 1e-5f, max - 88.0f * temperature);
  float high = std::nextafter(max, std::numeric_limits<float>::infinity());
  double mass_high = 0, mass_low = total;  // mass at or above: mass_low >= mass > mass_high
  for (int pass = 0; pass < 12; ++pass) {
    // Between the ends no weight is lighter than low's: that bounds how many tokens are left.
    const double lightest_left = std::exp((static_cast<double>(low) - static_cast<double>(max)) / temperature);
    if (mass_low - mass_high < 256 * lightest_left) break;
    float threshold[kThresholds];
    double at_least[kThresholds];
    const float step = (high - low) / (kThresholds + 1);
    if (!(low + step > low) || !(high - step < high)) break;
    for (int t = 0; t < kThresholds; ++t) threshold[t] = low + step * static_cast<float>(t + 1);
    MassAtLeast(scores, weights, vocab, threshold, at_least);
    for (int t = 0; t < kThresholds; ++t) {
      if (at_least[t] >= mass) {
        low = threshold[t];
        mass_low = at_least[t];
      } else {
        high = threshold[t];
        mass_high = at_least[t];
        break;
      }
    }
  }
  w.ids.clear();
  CollectBetween(scores, vocab, low, high, &w.ids);
  // ids rise: a stable sort keeps the lowest id first among equals.
  std::stable_sort(w.ids.begin(), w.ids.end(), [&](int32_t x, int32_t y) { return scores[x] > scores[y]; });
  Boundary last;
  double before = mass_high;
  for (int32_t id : w.ids) {
    if (before >= mass && last.id != std::numeric_limits<int64_t>::max()) break;
    last.score = scores[id];
    last.id = id;
    before += static_cast<double>(weights[id]);
  }
  return last;
}

/// Draws from w.weights over the tokens up to the boundary, in order of rising id. w.block_sums holds their sums.
int32_t DrawFromBlocks(const float* scores, int64_t vocab, const Boundary& boundary, double uniform, Scratch& w) {
  double total = 0;
  for (double s : w.block_sums) total += s;
  const double target = uniform * total;
  double sum = 0;
  size_t block = 0;
  while (block + 1 < w.block_sums.size() && sum + w.block_sums[block] <= target) sum += w.block_sums[block++];
  auto kept = [&](int64_t i) { return w.weights[i] > 0 && boundary.Keeps(scores[i], w.weights[i], i); };
  // Rounding may place the target behind the block's last weight: then the last token with any weight is taken.
  int64_t chosen = -1;
  for (int64_t i = static_cast<int64_t>(block) * kBlock; i < vocab; ++i) {
    if (!kept(i)) continue;
    sum += static_cast<double>(w.weights[i]);
    chosen = i;
    if (sum > target) break;
  }
  for (int64_t i = vocab - 1; chosen < 0; --i) {
    if (kept(i)) chosen = i;
  }
  return static_cast<int32_t>(chosen);
}

/// Steps 7 to 9 for a row without top-k.
int32_t PickWithoutTopK(const Params& p, const float* scores, int64_t vocab, float max, double uniform, Scratch& w) {
  w.weights.resize(static_cast<size_t>(vocab));
  w.block_sums.resize(static_cast<size_t>((vocab + kBlock - 1) / kBlock));
  ExpBlocks(scores, vocab, max, 1.0f / p.temperature, w.weights.data(), w.block_sums.data());
  Boundary last;
  if (p.top_p < 1) {
    double total = 0;
    for (double s : w.block_sums) total += s;
    last = TopPBoundary(scores, w.weights.data(), vocab, max, p.temperature, static_cast<double>(p.top_p) * total,
                        total, w);
  }
  last.min_weight = p.min_p;  // the largest weight is 1
  if (p.top_p < 1 || p.min_p > 0) KeptBlocks(scores, w.weights.data(), vocab, last, w.block_sums.data());
  return DrawFromBlocks(scores, vocab, last, uniform, w);
}

/// Steps 6 to 9 for a row with top-k: few candidates, sorted.
int32_t PickWithTopK(const Params& p, const float* scores, int64_t vocab, float max, double uniform, Scratch& w) {
  const float kth = KthLargest(scores, vocab, p.top_k, &w.buffer);
  w.ids.clear();
  // Weights below e^-88 are nothing in fp32.
  CollectAtLeast(scores, vocab, std::max(kth, max - 88.0f * p.temperature), &w.ids);
  w.candidates.clear();
  double total = 0;
  for (int32_t id : w.ids) {
    const double x = (static_cast<double>(scores[id]) - static_cast<double>(max)) / p.temperature;
    w.candidates.push_back({scores[id], id, std::exp(x)});
    total += w.candidates.back().weight;
  }
  if (p.top_p < 1) {
    std::sort(w.candidates.begin(), w.candidates.end(), Before);
    const double mass = static_cast<double>(p.top_p) * total;
    double before = 0;
    size_t kept = 0;
    while (kept < w.candidates.size() && (kept == 0 || before < mass)) before += w.candidates[kept++].weight;
    w.candidates.resize(kept);
    std::sort(w.candidates.begin(), w.candidates.end(), [](const auto& x, const auto& y) { return x.id < y.id; });
  }
  // The largest weight is 1 exactly, so min-p leaves at least that token.
  std::erase_if(w.candidates, [&](const Candidate& c) { return c.weight < static_cast<double>(p.min_p); });
  total = 0;
  for (const Candidate& c : w.candidates) total += c.weight;
  const double target = uniform * total;
  double sum = 0;
  for (const Candidate& c : w.candidates) {
    sum += c.weight;
    if (sum > target) return c.id;
  }
  return w.candidates.back().id;
}

/// Steps 5 to 9 on scores whose maximum is finite.
int32_t Pick(const Row& row, const float* scores, int64_t vocab, const MaxScan& max, Scratch& w) {
  const Params& p = *row.params;
  if (p.greedy()) return static_cast<int32_t>(max.index);
  const double uniform = Uniform(p.seed, row.position);
  if (p.top_k > 0 && p.top_k < vocab) return PickWithTopK(p, scores, vocab, max.max, uniform, w);
  return PickWithoutTopK(p, scores, vocab, max.max, uniform, w);
}

void FillLogprobs(const float* logits, int64_t vocab, float max, int32_t token, int32_t count, Scratch& w,
                  Outcome* out) {
  const double normaliser = static_cast<double>(max) + std::log(SumExp(logits, vocab, max, 1.0f));
  auto logprob = [&](int64_t id) { return static_cast<float>(static_cast<double>(logits[id]) - normaliser); };
  out->token = token;
  out->logprob = logprob(token);
  out->rank = static_cast<int32_t>(1 + CountGreater(logits, vocab, logits[token]));
  count = static_cast<int32_t>(std::min<int64_t>(count, vocab));
  out->top.clear();
  if (count <= 0) return;
  const float kth = KthLargest(logits, vocab, count, &w.buffer);
  w.ids.clear();
  CollectAtLeast(logits, vocab, kth, &w.ids);
  // Ties of the last value: the lowest ids. ids rise, and so they stay among equals.
  std::stable_sort(w.ids.begin(), w.ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  w.ids.resize(static_cast<size_t>(count));
  for (int32_t id : w.ids) out->top.push_back({id, logprob(id)});
}

Outcome SampleRow(const Row& row, int64_t vocab, Scratch& w) {
  Outcome out;
  const Params& p = *row.params;
  const MaxScan raw = FindMax(row.logits, vocab);
  if (raw.nan || raw.max == std::numeric_limits<float>::infinity()) {
    out.verdict = Verdict::kNotFinite;
    return out;
  }
  const float* scores = row.logits;
  MaxScan max = raw;
  if (NeedsProcessing(row)) {
    w.scores.resize(static_cast<size_t>(vocab));
    std::memcpy(w.scores.data(), row.logits, static_cast<size_t>(vocab) * sizeof(float));
    Process(row, vocab, w.scores.data());
    scores = w.scores.data();
    max = FindMax(scores, vocab);
  }
  if (max.max == kMinusInfinity) {
    out.verdict = Verdict::kNoToken;
    return out;
  }
  out.token = Pick(row, scores, vocab, max, w);
  if (p.logprobs >= 0) FillLogprobs(row.logits, vocab, raw.max, out.token, p.logprobs, w, &out);
  return out;
}

}  // namespace

struct Sampler::Impl {
  int64_t vocab = 0;
  std::vector<Scratch> scratch;
};

Sampler::Sampler(int64_t vocab) : impl_(std::make_unique<Impl>()) {
  FLUVIAL_CHECK_MSG(vocab > 0, "a vocabulary has at least one token");
  impl_->vocab = vocab;
}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;

int64_t Sampler::vocab() const { return impl_->vocab; }

void Sampler::Sample(ThreadPool& pool, std::span<const Row> rows, std::span<Outcome> outcomes) {
  FLUVIAL_CHECK(rows.size() == outcomes.size());
  impl_->scratch.resize(std::max(impl_->scratch.size(), static_cast<size_t>(pool.threads())));
  pool.ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t i, int worker) {
    outcomes[i] = SampleRow(rows[i], impl_->vocab, impl_->scratch[worker]);
  });
}

Outcome RawLogprobs(std::span<const float> logits, int32_t token, int32_t count) {
  const int64_t vocab = static_cast<int64_t>(logits.size());
  FLUVIAL_CHECK(token >= 0 && token < vocab);
  Outcome out;
  const MaxScan raw = FindMax(logits.data(), vocab);
  if (raw.nan || raw.max == std::numeric_limits<float>::infinity()) {
    out.verdict = Verdict::kNotFinite;
    return out;
  }
  if (raw.max == kMinusInfinity) {
    out.verdict = Verdict::kNoToken;
    return out;
  }
  Scratch w;
  FillLogprobs(logits.data(), vocab, raw.max, token, count, w, &out);
  return out;
}

}  // namespace fluvial::ops::sampling
