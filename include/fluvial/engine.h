// SPDX-License-Identifier: Apache-2.0
// Engine: loads a checkpoint and answers requests over token ids, many at a time (continuous batching).
//
// Text stays outside: callers tokenize, apply templates, look for stop strings and detokenize (fluvial_text). The
// engine owns the weights, the key/value pages, the recurrent state slots and the step loop.
//
//     auto engine = fluvial::Engine::Load(options);            // Result<std::unique_ptr<Engine>>
//     auto answers = (*engine)->Generate({request}, on_token);  // blocking; streams through on_token
//
// or, for a server: Submit() from any thread, Step() in a loop on one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fluvial/status.h"
#include "fluvial/vision.h"

namespace fluvial {

/// Everything Load() needs. The names are those of the command line, with `_` for `-`.
struct EngineOptions {
  std::string model;            ///< directory of a Hugging Face checkpoint
  std::string device = "auto";  ///< auto, cpu, cuda, cuda:N
  /// Type of activations and KV pages: auto (that of the checkpoint), float32, bfloat16, float16.
  /// Weights are used as stored.
  std::string dtype = "auto";
  /// Convolution states: auto (that of the activations) or float32.
  std::string mamba_cache_dtype = "auto";
  std::string mamba_ssm_cache_dtype = "auto";  ///< recurrent state: auto (the checkpoint's, else float32), float32, ...
  /// Operator -> backend name ("gdn_prefill" -> "cpu"). Absent or "auto" = chosen by cost. A named backend that cannot
  /// run the model is kRefused at Load(). Operators: gemm, gdn_prefill, gdn_decode, causal_conv1d, paged_attention.
  std::map<std::string, std::string> backends;
  int64_t max_model_len = 0;             ///< longest prompt + answer; 0 = min(the model's maximum, 8192)
  int32_t max_num_seqs = 8;              ///< sequences running at once = state slots
  int64_t max_num_batched_tokens = 512;  ///< tokens of one step; long prompts are split into such chunks
  /// Most tokens of one prompt in one step; 0 = no limit but max_num_batched_tokens. Keeps long prompts from slowing
  /// down those who are being answered.
  int64_t long_prefill_token_threshold = 0;
  /// Tokens that the KV pages hold together; 0 = max_num_seqs * max_model_len, or what memory_limit leaves when that is
  /// less (memory is touched only when used). Running requests that outgrow it are preempted and resumed.
  int64_t kv_cache_tokens = 0;
  int32_t block_size = 16;  ///< tokens of one KV page
  int32_t threads = 0;      ///< CPU threads; 0 = all that the process may use
  /// Bytes that weights, caches and workspace may take together; 0 = what the device or the container has. Load()
  /// refuses what does not fit, with the numbers.
  uint64_t memory_limit = 0;

  /// Keeps pages and state snapshots of prompts for requests that begin alike (src/engine/README.md).
  bool enable_prefix_caching = false;
  uint64_t prefix_cache_bytes = 0;  ///< for state snapshots; 0 = 4 * max_num_seqs of them, at least 16
  /// Most prompt tokens between two snapshots, besides the places chosen anyway; a multiple of 64, 0 = no limit.
  int64_t prefix_cache_interval = 512;
  /// Where snapshots are: "grid" = at multiples of 64 inside prompts, where a hit computes bit for bit what a miss
  /// does; "all" = also at the ends of prompts and answers (longer hits in conversations, equal up to rounding).
  std::string prefix_cache_points = "grid";
};

/// How tokens are drawn. Ranges and order of the steps: docs/sampling.md.
struct SamplingParams {
  float temperature = 1.0f;  ///< below 1e-5: greedy
  int32_t top_k = 0;         ///< 0 or -1: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
};

/// What stands behind the token ids of prompt positions begin..end-1 besides the ids: the content of an image and the
/// options of its processing. Two prompts share cached tokens only where these agree too.
struct PromptKey {
  int64_t begin = 0;
  int64_t end = 0;
  std::string key;  ///< compared byte for byte: a digest of content and options

  friend bool operator==(const PromptKey&, const PromptKey&) = default;
};

/// Says which tokens may come next (a grammar). One object per request, used on the stepping thread only.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  /// Sets bit id % 32 of mask[id / 32] for every allowed id; all bits are clear on entry. An error ends the request.
  virtual Status Allowed(std::span<uint32_t> mask) = 0;
  /// `id` was drawn. An error ends the request.
  virtual Status Accept(int32_t id) = 0;
};

struct Request {
  std::vector<int32_t> prompt;  ///< at least one id
  /// Images and videos, in the order of their placeholders in `prompt`, which holds one placeholder id per feature
  /// (vision/processor.h: ExpandPrompt). Empty: placeholder ids are ordinary tokens.
  std::vector<VisionInput> vision;
  SamplingParams sampling;
  int64_t max_tokens = 16;        ///< >= 1; cut to what max_model_len leaves
  int64_t min_tokens = 0;         ///< stop ids are not drawn before
  bool ignore_eos = false;        ///< the model's end tokens do not stop
  std::vector<int32_t> stop_ids;  ///< in addition to the model's end tokens
  int32_t logprobs = -1;          ///< -1: none; K >= 0: of the drawn token and the K most likely
  bool prompt_logits = false;     ///< return the logits after the prompt's last token
  int32_t prompt_logprobs = -1;   ///< -1: none; K >= 0: of every prompt token after the first and the K most likely
  std::vector<PromptKey> prompt_keys;           ///< in order of `begin`, not overlapping
  std::shared_ptr<TokenConstraint> constraint;  ///< null: every token is allowed
};

struct Token {
  int32_t id = -1;
  float logprob = 0;  ///< natural logarithm, of the raw distribution; only with Request::logprobs >= 0
  std::vector<std::pair<int32_t, float>> top;  ///< most likely first
};

enum class FinishReason : uint8_t {
  kStop,       ///< an end token, a stop id, or the callback said so
  kLength,     ///< max_tokens or max_model_len reached
  kCancelled,  ///< Cancel() or the cancel flag
  kError,      ///< see Completion::status
};

/// "stop", "length", "cancelled", "error".
std::string_view Name(FinishReason reason);

struct Completion {
  std::vector<Token> tokens;  ///< what was drawn, the stopping token included
  FinishReason finish_reason = FinishReason::kError;
  int32_t stop_id = -1;              ///< the end token or stop id that stopped; -1 otherwise
  std::vector<float> prompt_logits;  ///< [vocab], only when asked for
  /// Only with Request::prompt_logprobs >= 0: entry i is about prompt token i; entry 0 has no probability (empty top).
  std::vector<Token> prompt_logprobs;
  Status status;                   ///< not ok only with kError
  int64_t cached_tokens = 0;       ///< of the prompt, taken from the prefix cache
  int32_t preemptions = 0;         ///< how often the request gave its memory to older ones and came back
  double queue_seconds = 0;        ///< Submit to first step
  double first_token_seconds = 0;  ///< Submit to first token
  double total_seconds = 0;        ///< Submit to end
};

/// What a callback says after each token.
enum class Next : uint8_t {
  kContinue,
  kStop,  ///< the request ends with FinishReason::kStop (a stop string was seen)
};

/// Called on the stepping thread for every token, in order per request. `request` is the index in Generate's list or
/// Submit's id. Must not call the engine, except Cancel.
using TokenCallback = std::function<Next(uint64_t request, const Token& token)>;

/// Called once on the stepping thread when a request has ended, however it ended.
using DoneCallback = std::function<void(uint64_t request, Completion completion)>;

/// Totals since Load().
struct EngineStats {
  double load_seconds = 0;
  uint64_t weight_bytes = 0;  ///< bytes of the checkpoint's tensor files
  uint64_t kv_bytes = 0;      ///< reserved for KV pages
  uint64_t state_bytes = 0;   ///< reserved for recurrent and convolution states
  uint64_t workspace_bytes = 0;
  uint64_t peak_memory_bytes = 0;  ///< largest resident set of the process (CPU), mapped weights included
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  double prefill_seconds = 0;       ///< time of steps that held prompt tokens
  double decode_seconds = 0;        ///< time of steps that held none
  int64_t prefill_step_tokens = 0;  ///< tokens of those steps
  int64_t decode_step_tokens = 0;
  int64_t steps = 0;
  int64_t nan_aborts = 0;  ///< requests ended because their logits were not finite
  int64_t preemptions = 0;
  int64_t prefix_cache_queries = 0;  ///< prompt tokens looked up; 0 without prefix caching
  int64_t prefix_cache_hits = 0;     ///< of those, tokens found

  // As of now, not totals.
  int32_t requests_running = 0;
  int32_t requests_waiting = 0;
  int64_t kv_pages_total = 0;
  int64_t kv_pages_used = 0;      ///< by running requests
  int64_t kv_pages_cached = 0;    ///< by the prefix cache alone: given up when requests need them
  int32_t state_slots_total = 0;  ///< slots of running requests
  int32_t state_slots_used = 0;
  int32_t snapshot_slots_total = 0;  ///< slots of the prefix cache
  int32_t snapshot_slots_used = 0;
  uint64_t snapshot_bytes = 0;      ///< reserved for snapshot slots; part of state_bytes
  uint64_t memory_limit_bytes = 0;  ///< what weights, caches and workspace were checked against; 0: unknown

  /// 0..1
  double KvUsage() const {
    return kv_pages_total > 0 ? static_cast<double>(kv_pages_used) / static_cast<double>(kv_pages_total) : 0;
  }

  double PrefillTokensPerSecond() const { return prefill_seconds > 0 ? prefill_step_tokens / prefill_seconds : 0; }
  double DecodeTokensPerSecond() const { return decode_seconds > 0 ? decode_step_tokens / decode_seconds : 0; }
};

/// Which backend an operator uses, and why.
struct BackendUse {
  std::string op;           ///< "gdn_prefill"
  std::string name;         ///< "cpu"; several names, comma-separated, when shapes chose differently
  std::string explanation;  ///< the selection's line: chosen, costs, refusals
};

/// What is known of the loaded model.
struct ModelInfo {
  std::string architecture;  ///< "qwen3_5"
  std::string device;        ///< "cpu", "sm_90"
  std::string device_name;
  std::string dtype;
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  int64_t parameters = 0;
  std::vector<int32_t> eos_ids;  ///< generation_config.json, else config.json
  bool has_vision = false;       ///< the checkpoint has a vision tower
  std::string memory;            ///< the memory budget in one line: weights, caches, workspace, limit
};

class Engine {
 public:
  /// Errors: kInvalidArgument (options), kUnusableModel (files), kRefused (a named backend), kResource (memory).
  static Result<std::unique_ptr<Engine>> Load(const EngineOptions& options);

  virtual ~Engine() = default;

  virtual const ModelInfo& info() const = 0;
  virtual EngineStats stats() const = 0;
  /// Filled at Load() for the shapes of a full prefill step and of a decode step, extended when others appear.
  virtual std::vector<BackendUse> backends() const = 0;

  /// Checks a request as Submit does, without queueing it: kInvalidArgument naming field, value and bound.
  virtual Status Check(const Request& request) const = 0;

  /// Runs `requests` to their end, batched together; one Completion per request, in order. An invalid request fails the
  /// call before anything runs; what goes wrong later is in its Completion. `cancel`, when given, is looked at between
  /// steps: once true, all requests end with kCancelled. Not while another thread steps.
  virtual Result<std::vector<Completion>> Generate(std::vector<Request> requests, const TokenCallback& on_token = {},
                                                   const std::atomic<bool>* cancel = nullptr) = 0;

  /// Queues a request and returns its id. Any thread.
  virtual Result<uint64_t> Submit(Request request, TokenCallback on_token, DoneCallback on_done) = 0;

  /// Ends a request at the next step; unknown ids are ignored. Any thread.
  virtual void Cancel(uint64_t id) = 0;

  /// One batch: admits, runs, samples, calls back. False when nothing was waiting or running. One thread.
  virtual Result<bool> Step() = 0;
};

}  // namespace fluvial
