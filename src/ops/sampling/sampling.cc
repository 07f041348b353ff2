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

/// Moves the tokens that top-p keeps to the front, in no order, and returns how many: the smallest set of leading
/// tokens (Before) whose mass reaches `mass`. A quickselect on mass, linear on average, since sorting a whole
/// vocabulary for a flat distribution would cost more than the rest of the step.
size_t KeepTopMass(std::vector<Candidate>& c, double mass) {
  size_t begin = 0, end = c.size();
  double before = 0;  // mass of [0, begin), all of it kept
  while (end - begin > 32) {
    const Candidate pivot = c[begin + (end - begin) / 2];
    const auto middle = std::partition(c.begin() + static_cast<int64_t>(begin), c.begin() + static_cast<int64_t>(end),
                                       [&](const Candidate& x) { return Before(x, pivot); });
    const size_t split = static_cast<size_t>(middle - c.begin());
    double upper = 0;
    for (size_t i = begin; i < split; ++i) upper += c[i].weight;
    if (before + upper >= mass) {
      end = split;
      if (end == begin) break;
      continue;
    }
    // All of the upper part is kept; the pivot is the next token, so the lower part shrinks by one at least.
    before += upper;
    begin = split;
    const auto at = std::find_if(middle, c.begin() + static_cast<int64_t>(end),
                                 [&](const Candidate& x) { return x.id == pivot.id; });
    std::iter_swap(middle, at);
    before += c[begin++].weight;
    if (before >= mass) return begin;
  }
  std::sort(c.begin() + static_cast<int64_t>(begin), c.begin() + static_cast<int64_t>(end), Before);
  while (begin < end && (begin == 0 || before < mass)) before += c[begin++].weight;
  return begin;
}

/// Draws from weights in order of rising id.
int32_t Draw(std::vector<Candidate>& c, double uniform) {
  std::sort(c.begin(), c.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0;
  for (const Candidate& x : c) total += x.weight;
  const double target = uniform * total;
  double sum = 0;
  int32_t last = c.front().id;
  for (const Candidate& x : c) {
    if (x.weight <= 0) continue;
    sum += x.weight;
    last = x.id;
    if (sum > target) break;
  }
  return last;
}

/// Draws from the softmax of the whole row.
int32_t DrawFromAll(const float* scores, int64_t vocab, float max, float temperature, double uniform, Scratch& w) {
  w.weights.resize(static_cast<size_t>(vocab));
  w.block_sums.resize(static_cast<size_t>((vocab + kBlock - 1) / kBlock));
  ExpBlocks(scores, vocab, max, 1.0f / temperature, w.weights.data(), w.block_sums.data());
  double total = 0;
  for (double s : w.block_sums) total += s;
  const double target = uniform * total;
  double sum = 0;
  size_t block = 0;
  while (block + 1 < w.block_sums.size() && sum + w.block_sums[block] <= target) sum += w.block_sums[block++];
  // Rounding may place the target behind the block's last weight: then the last token with any weight is taken.
  int64_t last = -1;
  for (int64_t i = static_cast<int64_t>(block) * kBlock; i < vocab; ++i) {
    if (w.weights[i] <= 0) continue;
    sum += static_cast<double>(w.weights[i]);
    last = i;
    if (sum > target) break;
  }
  for (int64_t i = vocab - 1; last < 0; --i) {
    if (w.weights[i] > 0) last = i;
  }
  return static_cast<int32_t>(last);
}

/// Steps 5 to 9 on scores whose maximum is finite.
int32_t Pick(const Row& row, const float* scores, int64_t vocab, float max, Scratch& w) {
  const Params& p = *row.params;
  if (p.greedy()) return static_cast<int32_t>(FirstEqual(scores, vocab, max));
  const double uniform = Uniform(p.seed, row.position);
  const bool top_k = p.top_k > 0 && p.top_k < vocab;
  if (!top_k && p.top_p >= 1 && p.min_p <= 0) {
    return DrawFromAll(scores, vocab, max, p.temperature, uniform, w);
  }
  // Every token below `floor` has weight 0 in fp32 or falls to top-k.
  float floor = max - 88.0f * p.temperature;
  if (top_k) floor = std::max(floor, KthLargest(scores, vocab, p.top_k, &w.buffer));
  double total = 0;
  if (!top_k && p.top_p < 1) {
    total = SumExp(scores, vocab, max, 1.0f / p.temperature);
  }
  if (!top_k && p.min_p > 0 && p.top_p >= 1) {
    // min-p alone: collect a little more than needed, the exact rule follows.
    floor = std::max(floor, max + (std::log(p.min_p) - 1e-3f) * p.temperature - std::abs(max) * 1e-6f);
  }
  w.ids.clear();
  CollectAtLeast(scores, vocab, floor, &w.ids);
  w.candidates.clear();
  const double inverse = 1.0 / static_cast<double>(p.temperature);
  for (int32_t id : w.ids) {
    const double x = (static_cast<double>(scores[id]) - static_cast<double>(max)) * inverse;
    w.candidates.push_back({scores[id], id, std::exp(x)});
  }
  if (p.top_p < 1) {
    if (top_k) {
      for (const Candidate& c : w.candidates) total += c.weight;
    }
    w.candidates.resize(KeepTopMass(w.candidates, static_cast<double>(p.top_p) * total));
  }
  if (p.min_p > 0) {
    // The largest weight is 1 exactly and is always kept by the steps before.
    std::erase_if(w.candidates, [&](const Candidate& c) { return c.weight < static_cast<double>(p.min_p); });
  }
  return Draw(w.candidates, uniform);
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
  float max = raw.max;
  if (NeedsProcessing(row)) {
    w.scores.resize(static_cast<size_t>(vocab));
    std::memcpy(w.scores.data(), row.logits, static_cast<size_t>(vocab) * sizeof(float));
    Process(row, vocab, w.scores.data());
    scores = w.scores.data();
    max = FindMax(scores, vocab).max;
  }
  if (max == kMinusInfinity) {
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
