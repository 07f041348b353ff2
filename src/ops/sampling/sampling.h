// SPDX-License-Identifier: Apache-2.0
// Sampling: fp32 logits [rows, vocab] on the host -> one token per row, with log probabilities.
//
// Order of processing (transformers' order for the processors it has; the others where vLLM and OpenAI put them):
//   1. mask: `allowed` bits and `banned` ids             disallowed tokens get -inf
//   2. repetition penalty r, over distinct ids of prompt and output:   s > 0: s / r,  s <= 0: s * r
//   3. presence and frequency penalty, over the output:  s -= presence + frequency * count   (each id with count > 0)
//   4. logit bias                                         s += bias
//   5. temperature T                                      s /= T;  T < kGreedyTemperature: argmax now, lowest id on
//   ties
//   6. top-k        keeps every token whose s is at least the k-th largest: ties of the k-th value stay
//   7. top-p        softmax over what is left, in order of falling s (lowest id first on ties): keeps a token while the
//   mass
//                   before it is < top_p; always keeps the first
//   8. min-p        keeps tokens with probability >= min_p * the largest probability
//   9. softmax in fp32, then inverse-CDF draw in order of rising id with one uniform number
// The uniform number is Philox4x32-10 of (seed, position): a row's token does not depend on batch company or threads.
//
// Log probabilities are log_softmax of the raw logits, before any of the steps above (what OpenAI and vLLM's
// raw_logprobs report), computed in fp64 from fp32 inputs and returned in fp32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "fluvial/status.h"

namespace fluvial::ops::sampling {

/// Below this temperature a row is greedy.
inline constexpr float kGreedyTemperature = 1e-5f;
/// Most top log probabilities a row may ask for.
inline constexpr int32_t kMaxLogprobs = 1024;

/// What one request asks for. Value type; the defaults sample from the plain softmax.
struct Params {
  float temperature = 1.0f;         ///< 0..100; below kGreedyTemperature = greedy
  int32_t top_k = 0;                ///< 0 or -1: off; larger than the vocabulary: off
  float top_p = 1.0f;               ///< (0, 1]
  float min_p = 0.0f;               ///< [0, 1]
  float repetition_penalty = 1.0f;  ///< (0, 100]; 1 = off
  float presence_penalty = 0.0f;    ///< [-2, 2]
  float frequency_penalty = 0.0f;   ///< [-2, 2]
  uint64_t seed = 0;
  int32_t logprobs = -1;                              ///< -1: none; K >= 0: the chosen token's and the K largest
  std::vector<std::pair<int32_t, float>> logit_bias;  ///< (id, [-100, 100]), each id once

  bool greedy() const { return temperature < kGreedyTemperature; }
  friend bool operator==(const Params&, const Params&) = default;
};

/// kInvalidArgument naming the parameter, its value and its range.
Status Validate(const Params& params, int64_t vocab);

/// Distinct ids of a request's prompt and output with output counts; kept up to date token by token, so that penalties
/// cost the number of distinct ids and not the length.
class TokenHistory {
 public:
  struct Entry {
    int32_t id = 0;
    int32_t output_count = 0;
  };
  void AddPrompt(std::span<const int32_t> ids);
  void AddOutput(int32_t id);
  void Clear();
  /// In order of first appearance.
  std::span<const Entry> entries() const { return entries_; }

 private:
  Entry& At(int32_t id);
  std::vector<Entry> entries_;
  std::unordered_map<int32_t, size_t> index_;
};

/// One row.
struct Row {
  const float* logits = nullptr;          ///< [vocab], read only
  const Params* params = nullptr;         ///< validated by the caller once per request
  const TokenHistory* history = nullptr;  ///< null: no penalties apply
  uint64_t position = 0;                  ///< tokens this request has drawn before: the counter of the generator
  const uint32_t* allowed = nullptr;      ///< bit id % 32 of word id / 32; null: all allowed (grammars)
  std::span<const int32_t> banned = {};  ///< e.g. stop tokens before min_tokens; ids outside the vocabulary are ignored
};

enum class Verdict : uint8_t {
  kOk,
  kNotFinite,  ///< the logits hold NaN or +inf: the request must be aborted and its state cleared
  kNoToken,    ///< mask, bans and -inf logits leave nothing to choose
};

struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;
};

struct Outcome {
  Verdict verdict = Verdict::kOk;
  int32_t token = -1;             ///< -1 unless kOk
  float logprob = 0;              ///< of `token`; only with params.logprobs >= 0
  int32_t rank = 0;               ///< 1 + number of tokens with a larger raw logit; only with params.logprobs >= 0
  std::vector<TokenLogprob> top;  ///< min(logprobs, vocab) largest raw logits, falling, lowest id first on ties
};

/// Holds scratch for one vocabulary. Not thread-safe; rows of one call run in parallel on the pool.
class Sampler {
 public:
  explicit Sampler(int64_t vocab);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;

  int64_t vocab() const;

  /// outcomes[i] answers rows[i] (same size). A bad row never disturbs another.
  void Sample(ThreadPool& pool, std::span<const Row> rows, std::span<Outcome> outcomes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Log probabilities of one row of raw logits: of `token` (out.logprob, out.rank, out.token = token) and the `count`
/// largest (out.top). For prompt_logprobs and echo; Sample uses the same code. verdict kNotFinite on NaN or +inf.
Outcome RawLogprobs(std::span<const float> logits, int32_t token, int32_t count);

/// The probabilities Sample draws from, after all steps, written to probabilities[vocab] (0 where removed; greedy: 1 at
/// the argmax). Straightforward fp64 evaluation with a full sort: the reference for tests and for `fluvial verify`.
Verdict ReferenceProbabilities(const Row& row, int64_t vocab, std::span<double> probabilities);

}  // namespace fluvial::ops::sampling
