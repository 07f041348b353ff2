// SPDX-License-Identifier: Apache-2.0
// Names, hash and text form of problems; the list of backends and the choice among them.
#include "ops/delta_rule/delta_rule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/text_form.h"
#include "ops/delta_rule/backends.h"

namespace fluvial::ops::delta_rule {
namespace {

template <class T>
struct Named {
  std::string_view name;
  T value;
};

constexpr std::array<Named<Op>, 4> kOps = {{{"gdn_prefill", Op::kGdnPrefill},
                                            {"gdn_decode", Op::kGdnDecode},
                                            {"kda_prefill", Op::kKdaPrefill},
                                            {"kda_decode", Op::kKdaDecode}}};
constexpr std::array<Named<GateForm>, 3> kGates = {
    {{"log", GateForm::kLog}, {"softplus", GateForm::kSoftplus}, {"bounded", GateForm::kBounded}}};
constexpr std::array<Named<BetaForm>, 3> kBetas = {
    {{"probability", BetaForm::kProbability}, {"logit", BetaForm::kLogit}, {"two_sigmoid", BetaForm::kTwoSigmoid}}};
constexpr std::array<Named<NormForm>, 3> kNorms = {
    {{"none", NormForm::kNone}, {"l2_add", NormForm::kL2Add}, {"l2_max", NormForm::kL2Max}}};

template <class T, size_t N>
std::string_view NameOf(const std::array<Named<T>, N>& table, T value) {
  for (const auto& e : table) {
    if (e.value == value) return e.name;
  }
  return "unknown";
}

template <class T, size_t N>
Result<T> ParseName(const std::array<Named<T>, N>& table, std::string_view what, std::string_view text) {
  std::string names;
  for (const auto& e : table) {
    if (e.name == text) return e.value;
    names += (names.empty() ? "" : ", ") + std::string(e.name);
  }
  return Status::InvalidArgument(std::string(what) + "=" + std::string(text) + ": use one of " + names);
}

float DefaultScale(int32_t k) { return 1.0f / std::sqrt(static_cast<float>(std::max(k, 1))); }

// "name" or "name:number".
struct Tagged {
  std::string name;
  bool has_value = false;
  float value = 0;
};

Result<Tagged> TakeTagged(TextFields& fields, std::string_view key) {
  const std::string text = fields.Take(key);
  const size_t colon = text.find(':');
  Tagged out{text.substr(0, colon), colon != std::string::npos, 0};
  if (out.has_value) {
    FLUVIAL_ASSIGN_OR_RETURN(TextFields number, TextFields::Parse("x value=" + text.substr(colon + 1)));
    const auto value = number.TakeFloat("value", 0);
    if (!value.ok()) return Status::InvalidArgument(std::string(key) + "=" + text + ": no number after ':'");
    out.value = *value;
  }
  return out;
}

Status TakeInt32(TextFields& fields, std::string_view key, int32_t fallback, int32_t* out) {
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t value, fields.TakeInt(key, fallback));
  if (value < INT32_MIN || value > INT32_MAX) {
    return Status::InvalidArgument(std::string(key) + "=" + std::to_string(value) + ": too large");
  }
  *out = static_cast<int32_t>(value);
  return Status::Ok();
}

Status TakeBool(TextFields& fields, std::string_view key, bool fallback, bool* out) {
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t value, fields.TakeInt(key, fallback ? 1 : 0));
  if (value != 0 && value != 1) {
    return Status::InvalidArgument(std::string(key) + "=" + std::to_string(value) + ": use 0 or 1");
  }
  *out = value == 1;
  return Status::Ok();
}

Status TakeDType(TextFields& fields, std::string_view key, DType fallback, DType* out) {
  *out = fallback;
  if (!fields.Has(key)) return Status::Ok();
  FLUVIAL_ASSIGN_OR_RETURN(*out, ParseDType(fields.Take(key)));
  return Status::Ok();
}

std::vector<DeltaBackend> MakeList(Op op) {
  const auto cuda = CudaBackends(op);
  std::vector<DeltaBackend> list(cuda.begin(), cuda.end());
  if (op == Op::kGdnPrefill || op == Op::kKdaPrefill) list.push_back(kCpuBf16);
  list.push_back(kCpu);
  list.push_back(kReference);
  return list;
}

/// The lists of an operator, the newest last: one more with every backend that a provider adds. Older ones stay,
/// because callers hold spans of them and pointers into them.
std::deque<std::vector<DeltaBackend>>& Lists(Op op) {
  static std::array<std::deque<std::vector<DeltaBackend>>, 4> lists = {
      std::deque{MakeList(Op::kGdnPrefill)}, std::deque{MakeList(Op::kGdnDecode)},
      std::deque{MakeList(Op::kKdaPrefill)}, std::deque{MakeList(Op::kKdaDecode)}};
  return lists[static_cast<size_t>(op)];
}

}  // namespace

std::string_view Name(Op op) { return NameOf(kOps, op); }

Result<Op> ParseOp(std::string_view name) { return ParseName(kOps, "operator", name); }

uint64_t Problem::Hash() const {
  Hasher h;
  h.Add(static_cast<uint64_t>(op)).Add(static_cast<uint64_t>(hk)).Add(static_cast<uint64_t>(hv));
  h.Add(static_cast<uint64_t>(k)).Add(static_cast<uint64_t>(v));
  h.Add(static_cast<uint64_t>(io)).Add(static_cast<uint64_t>(gate_dtype)).Add(static_cast<uint64_t>(beta_dtype));
  h.Add(static_cast<uint64_t>(state)).Add(static_cast<uint64_t>(gate)).Add(static_cast<uint64_t>(beta));
  h.Add(static_cast<uint64_t>(norm)).Add(norm_eps + 0.0f).Add(scale + 0.0f).Add(lower_bound + 0.0f);
  h.Add(static_cast<uint64_t>(has_a_log)).Add(static_cast<uint64_t>(has_dt_bias));
  h.Add(static_cast<uint64_t>(tokens)).Add(static_cast<uint64_t>(sequences)).Add(static_cast<uint64_t>(max_length));
  h.Add(static_cast<uint64_t>(checkpoint_every)).Add(static_cast<uint64_t>(token_states));
  h.Add(static_cast<uint64_t>(alignment));
  return h.Get();
}

std::string Problem::ToString() const {
  const auto text = [](auto x) { return std::string(x); };
  std::string s = text(Name(op)) + " hk=" + std::to_string(hk) + " hv=" + std::to_string(hv) +
                  " k=" + std::to_string(k) + " v=" + std::to_string(v) + " io=" + text(fluvial::Name(io)) +
                  " state=" + text(fluvial::Name(state));
  s += " gate=" + text(NameOf(kGates, gate));
  if (gate == GateForm::kBounded) s += ":" + FormatFloat(lower_bound);
  s += " gate_dtype=" + text(fluvial::Name(gate_dtype));
  s += " a_log=" + std::to_string(has_a_log) + " dt_bias=" + std::to_string(has_dt_bias);
  s += " beta=" + text(NameOf(kBetas, beta)) + " beta_dtype=" + text(fluvial::Name(beta_dtype));
  s += " norm=" + text(NameOf(kNorms, norm));
  if (norm != NormForm::kNone) s += ":" + FormatFloat(norm_eps);
  if (scale != DefaultScale(k)) s += " scale=" + FormatFloat(scale);
  if (checkpoint_every != 0) s += " checkpoint_every=" + std::to_string(checkpoint_every);
  if (token_states) s += " token_states=1";
  if (alignment != 16) s += " alignment=" + std::to_string(alignment);
  return s;
}

void SetLengths(Problem& problem, std::span<const int64_t> lengths) {
  problem.tokens = 0;
  problem.max_length = 0;
  problem.sequences = static_cast<int32_t>(lengths.size());
  for (const int64_t n : lengths) {
    problem.tokens += n;
    problem.max_length = std::max(problem.max_length, n);
  }
}

Result<ProblemLine> ParseProblemLine(std::string_view line) {
  FLUVIAL_ASSIGN_OR_RETURN(TextFields fields, TextFields::Parse(line));
  ProblemLine out;
  Problem& p = out.problem;
  FLUVIAL_ASSIGN_OR_RETURN(p.op, ParseOp(fields.name()));
  FLUVIAL_RETURN_IF_ERROR(TakeInt32(fields, "hk", 0, &p.hk));
  FLUVIAL_RETURN_IF_ERROR(TakeInt32(fields, "hv", p.hk, &p.hv));
  FLUVIAL_RETURN_IF_ERROR(TakeInt32(fields, "k", p.k, &p.k));
  FLUVIAL_RETURN_IF_ERROR(TakeInt32(fields, "v", p.v, &p.v));
  FLUVIAL_RETURN_IF_ERROR(TakeDType(fields, "io", p.io, &p.io));
  FLUVIAL_RETURN_IF_ERROR(TakeDType(fields, "gate_dtype", p.io, &p.gate_dtype));
  FLUVIAL_RETURN_IF_ERROR(TakeDType(fields, "beta_dtype", p.io, &p.beta_dtype));
  FLUVIAL_RETURN_IF_ERROR(TakeDType(fields, "state", p.state, &p.state));
  if (fields.Has("gate")) {
    FLUVIAL_ASSIGN_OR_RETURN(const Tagged gate, TakeTagged(fields, "gate"));
    FLUVIAL_ASSIGN_OR_RETURN(p.gate, ParseName(kGates, "gate", gate.name));
    if (gate.has_value != (p.gate == GateForm::kBounded)) {
      return Status::InvalidArgument("gate=" + gate.name + ": write gate=log, gate=softplus or gate=bounded:-5");
    }
    p.lower_bound = gate.value;
  }
  const bool in_kernel = p.gate != GateForm::kLog;
  FLUVIAL_RETURN_IF_ERROR(TakeBool(fields, "a_log", in_kernel, &p.has_a_log));
  FLUVIAL_RETURN_IF_ERROR(TakeBool(fields, "dt_bias", in_kernel, &p.has_dt_bias));
  if (fields.Has("beta")) {
    FLUVIAL_ASSIGN_OR_RETURN(p.beta, ParseName(kBetas, "beta", fields.Take("beta")));
  }
  if (fields.Has("norm")) {
    FLUVIAL_ASSIGN_OR_RETURN(const Tagged norm, TakeTagged(fields, "norm"));
    FLUVIAL_ASSIGN_OR_RETURN(p.norm, ParseName(kNorms, "norm", norm.name));
    if (norm.has_value) p.norm_eps = norm.value;
  }
  FLUVIAL_ASSIGN_OR_RETURN(p.scale, fields.TakeFloat("scale", 0));
  if (p.scale == 0) p.scale = DefaultScale(p.k);
  FLUVIAL_RETURN_IF_ERROR(TakeInt32(fields, "checkpoint_every", 0, &p.checkpoint_every));
  FLUVIAL_RETURN_IF_ERROR(TakeBool(fields, "token_states", false, &p.token_states));
  FLUVIAL_RETURN_IF_ERROR(TakeInt32(fields, "alignment", 16, &p.alignment));
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t seed, fields.TakeInt("seed", 1));
  out.seed = static_cast<uint64_t>(seed);
  if (!fields.Has("lens")) {
    return Status::InvalidArgument("problem line: no lens=: give the sequence lengths, e.g. lens=1300,547,8x1024");
  }
  FLUVIAL_ASSIGN_OR_RETURN(out.lengths, ParseLengths(fields.Take("lens")));
  FLUVIAL_RETURN_IF_ERROR(fields.Finish());
  SetLengths(p, out.lengths);
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  return out;
}

std::string FormatProblemLine(const ProblemLine& line) {
  return line.problem.ToString() + " lens=" + FormatLengths(line.lengths) +
         (line.seed != 1 ? " seed=" + std::to_string(static_cast<int64_t>(line.seed)) : "");
}

std::span<const DeltaBackend> Backends(Op op) { return Lists(op).back(); }

void AddBackend(Op op, const DeltaBackend& backend) {
  std::vector<DeltaBackend> list = Lists(op).back();
  list.insert(list.end() - 1, backend);
  Lists(op).push_back(std::move(list));
}

Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference) {
  FLUVIAL_RETURN_IF_ERROR(Validate(problem));
  return Select<Problem, Args>(Backends(problem.op), Name(problem.op), problem, device, preference);
}

}  // namespace fluvial::ops::delta_rule
