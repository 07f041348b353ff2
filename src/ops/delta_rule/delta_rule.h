// SPDX-License-Identifier: Apache-2.0
// The delta rule: gdn_prefill, gdn_decode, kda_prefill, kda_decode. One contract, several backends.
//
// Per sequence and value head, with state S (V x K, fp32 arithmetic), for tokens t = 1..L:
//     S  <- S * diag(exp(g_t))              decay first (GDN: one g per head; KDA: one per key channel)
//     d  =  beta_t * (v_t - S k_t)          predict with the decayed state
//     S  <- S + d k_t^T                     rank-1 write
//     o_t = scale * S q_t                   output from the state after the write
// Value head h reads key head h / (Hv/Hk). Sources: Yang et al., "Gated Delta Networks" (arXiv 2412.06464);
// Kimi Team, "Kimi Linear" (arXiv 2510.26692).
//
// Everything that other libraries leave open is fixed here: gates are natural-log decays, states are
// [slot, Hv, V, K], negative slots read zeros and write nothing, empty sequences hand their state on, masked
// lanes are selected away (never multiplied by zero), finite input gives finite output.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "ops/common/backend.h"
#include "ops/common/sequence_plan.h"

namespace fluvial::ops::delta_rule {

enum class Op : uint8_t { kGdnPrefill, kGdnDecode, kKdaPrefill, kKdaDecode };

/// How the log decay g comes from the `gate` tensor x.
enum class GateForm : uint8_t {
  kLog,       ///< g = x, natural log, <= 0
  kSoftplus,  ///< g = -exp(A_log) * softplus(x + dt_bias); softplus is the identity above 20
  kBounded,   ///< g = lower_bound * sigmoid(exp(A_log) * (x + dt_bias)), -5 <= lower_bound < 0; A_log optional
};

enum class BetaForm : uint8_t {
  kProbability,  ///< beta = x
  kLogit,        ///< beta = sigmoid(x)
  kTwoSigmoid,   ///< beta = 2 sigmoid(x) (negative eigenvalues allowed)
};

enum class NormForm : uint8_t {
  kNone,
  kL2Add,  ///< x * rsqrt(sum x^2 + eps)
  kL2Max,  ///< x * rsqrt(max(sum x^2, eps))
};

/// Everything selection may depend on. Value type.
struct Problem {
  Op op = Op::kGdnPrefill;
  int32_t hk = 0;  ///< key (and query) heads
  int32_t hv = 0;  ///< value heads = state heads = output heads; a multiple of hk
  int32_t k = 128;
  int32_t v = 128;
  DType io = DType::kBF16;  ///< q, k, v, out
  DType gate_dtype = DType::kBF16;
  DType beta_dtype = DType::kBF16;
  DType state = DType::kF32;
  GateForm gate = GateForm::kSoftplus;
  bool has_a_log = true;
  bool has_dt_bias = true;
  float lower_bound = 0;  ///< kBounded only
  BetaForm beta = BetaForm::kLogit;
  NormForm norm = NormForm::kL2Add;
  float norm_eps = 1e-6f;
  float scale = 0;  ///< multiplies q only; 0 in a text line means 1/sqrt(k)
  int64_t tokens = 0;
  int32_t sequences = 0;
  int64_t max_length = 0;
  /// Prefill: write the state after every n-th token of a sequence (0: none). Multiple of 64.
  int32_t checkpoint_every = 0;
  /// Decode of several tokens: keep a state per token (verification that may reject a suffix).
  bool token_states = false;
  /// Bytes (16, 8, 4, 2) that divide every row pitch and base address of q, k, v, out, state and KDA's gate.
  /// Scalars per head (beta, GDN's gate) need the alignment of their type only.
  int32_t alignment = 16;

  bool kda() const { return op == Op::kKdaPrefill || op == Op::kKdaDecode; }
  bool prefill() const { return op == Op::kGdnPrefill || op == Op::kKdaPrefill; }

  friend bool operator==(const Problem&, const Problem&) = default;
  uint64_t Hash() const;
  /// Fields of the text line without lengths (the caller writes lens=): "kda_prefill hk=96 hv=96 ...".
  std::string ToString() const;
};

std::string_view Name(Op op);
Result<Op> ParseOp(std::string_view name);

/// Longest decode: tokens of one sequence in one call.
inline constexpr int64_t kMaxDecodeTokens = 8;

/// Largest k and v of the contract.
inline constexpr int32_t kMaxHeadDim = 512;

/// Tensors of one call. T = tokens, N = sequences. Rows are packed inside; the outermost stride (the pitch of a
/// token's row, of a state slot) is free. `out` shares no byte with an input.
struct Args {
  TensorView q;        ///< io [T, Hk, K]
  TensorView k;        ///< io [T, Hk, K]
  TensorView v;        ///< io [T, Hv, V]
  TensorView gate;     ///< KDA [T, Hv, K], GDN [T, Hv]; gate_dtype
  TensorView beta;     ///< [T, Hv]; beta_dtype
  TensorView a_log;    ///< fp32 [Hv]; undefined unless has_a_log
  TensorView dt_bias;  ///< fp32 KDA [Hv, K], GDN [Hv]; undefined unless has_dt_bias
  TensorView out;      ///< io [T, Hv, V]
  TensorView state;    ///< state dtype [slots, Hv, V, K]; inner three packed, any slot pitch
  /// state dtype [rows, Hv, V, K], packed: rows of sequence n start at sum over m < n of floor(len_m / every);
  /// row j holds the state after token (j+1)*every.
  TensorView checkpoints;
  /// Decode with token_states: i32 [N, max_length], the slot that takes the state after each token; negative
  /// = do not write. The plan's write slots are then not used.
  TensorView token_slots;
  const SequencePlan* plan = nullptr;
};

using DeltaBackend = Backend<Problem, Args>;

/// The contract itself, the same for every backend: kInvalidArgument naming field, value and rule.
Status Validate(const Problem& problem);

/// That `args` fit `problem`: shapes, dtypes, strides, slots within the pool, checkpoints large enough.
Status Validate(const Problem& problem, const Args& args);

/// Fills the fields of `problem` that follow from lengths: tokens, sequences, max_length.
void SetLengths(Problem& problem, std::span<const int64_t> lengths);

/// The visible ordered list of each operator, reference last.
std::span<const DeltaBackend> Backends(Op op);

/// Validate + Select over Backends(problem.op).
Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference);

/// A problem line: the operator, its fields and lens=; unknown fields are errors.
struct ProblemLine {
  Problem problem;
  std::vector<int64_t> lengths;
  uint64_t seed = 1;
};
Result<ProblemLine> ParseProblemLine(std::string_view line);
std::string FormatProblemLine(const ProblemLine& line);

}  // namespace fluvial::ops::delta_rule
