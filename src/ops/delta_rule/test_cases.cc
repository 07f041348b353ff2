// SPDX-License-Identifier: Apache-2.0
// Case lines and the inputs that follow from them.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/text_form.h"
#include "ops/delta_rule/test_kit.h"

namespace fluvial::ops::delta_rule {
namespace {

using test_kit::HostTensor;
using test_kit::Random;

template <class T, size_t N>
using Table = std::array<std::pair<std::string_view, T>, N>;

constexpr Table<Fill, 10> kFills = {{{"exact", Fill::kExact},
                                     {"random", Fill::kRandom},
                                     {"equal", Fill::kEqual},
                                     {"collinear", Fill::kCollinear},
                                     {"positive", Fill::kPositive},
                                     {"strong", Fill::kStrong},
                                     {"mixed", Fill::kMixed},
                                     {"no_decay", Fill::kNoDecay},
                                     {"tiny", Fill::kTiny},
                                     {"large", Fill::kLarge}}};
constexpr Table<Slots, 5> kSlots = {{{"identity", Slots::kIdentity},
                                     {"shuffled", Slots::kShuffled},
                                     {"apart", Slots::kApart},
                                     {"fresh", Slots::kFresh},
                                     {"mixed", Slots::kMixed}}};

template <class T, size_t N>
Status Find(const Table<T, N>& table, std::string_view key, std::string_view text, T* out) {
  std::string names;
  for (const auto& [name, value] : table) {
    if (name == text) {
      *out = value;
      return Status::Ok();
    }
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return Status::InvalidArgument(std::string(key) + "=" + std::string(text) + ": use one of " + names);
}

template <class T, size_t N>
std::string NameIn(const Table<T, N>& table, T value) {
  for (const auto& [name, v] : table) {
    if (v == value) return std::string(name);
  }
  return "unknown";
}

double Logit(double p) { return std::log(p / (1 - p)); }

// Values in a row: cheap to name, no allocation per row.
void SetRow(HostTensor* t, int64_t row, int64_t first, const std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) t->Set(row, first + static_cast<int64_t>(i), values[i]);
}

void Normalise(std::vector<double>* x) {
  double sum = 0;
  for (double e : *x) sum += e * e;
  if (sum == 0) return;
  for (double& e : *x) e /= std::sqrt(sum);
}

}  // namespace

Result<Case> ParseCase(std::string_view line) {
  Case c;
  FLUVIAL_ASSIGN_OR_RETURN(TextFields fields, TextFields::Parse(line));
  if (fields.Has("fill")) FLUVIAL_RETURN_IF_ERROR(Find(kFills, "fill", fields.Take("fill"), &c.fill));
  if (fields.Has("slots")) FLUVIAL_RETURN_IF_ERROR(Find(kSlots, "slots", fields.Take("slots"), &c.slots));
  const auto small = [&](std::string_view key, int64_t low, int64_t fallback, int32_t* out) -> Status {
    FLUVIAL_ASSIGN_OR_RETURN(const int64_t value, fields.TakeInt(key, fallback));
    if (value < low || value > 65536) {
      return Status::InvalidArgument(std::string(key) + "=" + std::to_string(value) + ": must be in [" +
                                     std::to_string(low) + ", 65536]");
    }
    *out = static_cast<int32_t>(value);
    return Status::Ok();
  };
  FLUVIAL_RETURN_IF_ERROR(small("pad", 0, 0, &c.pad));
  FLUVIAL_RETURN_IF_ERROR(small("extra", 0, 0, &c.extra));
  FLUVIAL_RETURN_IF_ERROR(small("nan", -1, -1, &c.nan));
  int32_t refill = 0, split = 0;
  FLUVIAL_RETURN_IF_ERROR(small("refill", 0, 0, &refill));
  FLUVIAL_RETURN_IF_ERROR(small("split", 0, 0, &split));
  c.refill = refill != 0;
  c.split = split != 0;
  // What is left must be a problem line: drop our words from the text.
  std::string rest;
  for (size_t pos = 0; pos < line.size();) {
    const size_t begin = line.find_first_not_of(" \t", pos);
    if (begin == std::string_view::npos) break;
    const size_t end = std::min(line.find_first_of(" \t", begin), line.size());
    const std::string_view word = line.substr(begin, end - begin);
    const std::string_view key = word.substr(0, word.find('='));
    if (key != "fill" && key != "slots" && key != "pad" && key != "extra" && key != "nan" && key != "refill" &&
        key != "split") {
      rest += (rest.empty() ? "" : " ") + std::string(word);
    }
    pos = end;
  }
  FLUVIAL_ASSIGN_OR_RETURN(c.line, ParseProblemLine(rest));
  const Problem& p = c.line.problem;
  if (c.nan >= p.sequences) return Status::InvalidArgument("nan=" + std::to_string(c.nan) + ": no such sequence");
  if (c.refill && p.token_states) return Status::InvalidArgument("refill=1 takes no token_states");
  if (c.split && (!p.prefill() || p.state != DType::kF32 || p.checkpoint_every != 0)) {
    return Status::InvalidArgument("split=1 takes a prefill with state=fp32 and no checkpoints");
  }
  if (c.fill == Fill::kExact) {
    int exponent = 0;
    if (std::frexp(p.scale, &exponent) != 0.5f) {
      return Status::InvalidArgument("fill=exact needs a scale that is a power of two, e.g. scale=1");
    }
    if (p.norm == NormForm::kL2Add) {
      return Status::InvalidArgument("fill=exact needs norm=none or norm=l2_max: an added eps is not exact");
    }
  }
  return c;
}

std::string FormatCase(const Case& c) {
  std::string s = FormatProblemLine(c.line) + " fill=" + NameIn(kFills, c.fill);
  if (c.slots != Slots::kIdentity) s += " slots=" + NameIn(kSlots, c.slots);
  if (c.pad != 0) s += " pad=" + std::to_string(c.pad);
  if (c.extra != 0) s += " extra=" + std::to_string(c.extra);
  if (c.nan >= 0) s += " nan=" + std::to_string(c.nan);
  if (c.refill) s += " refill=1";
  if (c.split) s += " split=1";
  return s;
}

// The gate tensor's element for a token (and channel) of head `head`.
double PreparedCase::GateInput(Random& random, int64_t head, bool strong) const {
  const Problem& p = case_.line.problem;
  const double bias = p.has_dt_bias ? inputs_.dt_bias.Get(p.kda() ? head : 0, p.kda() ? 0 : head) : 0;
  switch (case_.fill) {
    case Fill::kExact:
      // Decay exactly 1, or (5 %) exactly 0 after rounding to fp32. The bounded form has no decay of 0.
      if (p.gate == GateForm::kLog) return random.Chance(0.05) ? -200 : 0;
      return p.gate == GateForm::kSoftplus && random.Chance(0.05) ? 8192 : -8192;
    case Fill::kStrong:
    case Fill::kMixed:
    case Fill::kNoDecay:
      if (p.gate == GateForm::kLog) return strong ? -80 : 0;
      if (p.gate == GateForm::kSoftplus) return (strong ? 5 : -8192) - bias;  // A_log is log 16
      return (strong ? 40 : -400) - bias;
    case Fill::kEqual:
      return p.gate == GateForm::kLog ? 0 : -8192;
    case Fill::kCollinear:
      return p.gate == GateForm::kLog ? -1e-3 * random.Uniform() : -8 - bias;
    case Fill::kLarge:
      if (p.gate == GateForm::kLog) return -1e4 * random.Uniform();
      return random.Uniform(-1e4, 1e4);
    default:
      break;
  }
  if (p.gate == GateForm::kLog) {
    // log sigmoid of a normal number, weakened: long memory in most heads, short in some.
    const double x = random.Normal();
    return -std::log1p(std::exp(-x)) * (head % 3 == 0 ? 1.0 : head % 3 == 1 ? 0.1 : 0.01);
  }
  return 0.5 * random.Normal() + (p.gate == GateForm::kBounded ? -2 : 0);
}

double PreparedCase::BetaInput(Random& random) const {
  const BetaForm form = case_.line.problem.beta;
  const auto encode = [&](double beta) {
    if (form == BetaForm::kProbability) return beta;
    const double x = form == BetaForm::kLogit ? beta : beta / 2;
    return x <= 0 ? -8192.0 : x >= 1 ? 8192.0 : Logit(x);
  };
  switch (case_.fill) {
    case Fill::kExact:
      if (form == BetaForm::kTwoSigmoid && random.Chance(0.05)) return 8192;  // beta 2
      return encode(random.Chance(0.8) ? 1 : 0);
    case Fill::kEqual:
      return encode(1);
    case Fill::kCollinear:
      return encode(random.Uniform(0.95, 0.999));
    case Fill::kLarge:
      return form == BetaForm::kProbability ? random.Uniform() : random.Uniform(-1e4, 1e4);
    default:
      return form == BetaForm::kProbability ? 1 / (1 + std::exp(-random.Normal())) : random.Normal();
  }
}

void PreparedCase::BuildKeys(Random& random) {
  const Problem& p = case_.line.problem;
  std::vector<double> row(p.k), shared(p.k);
  const auto normal = [&](std::vector<double>* x) {
    for (double& e : *x) e = random.Normal();
  };
  int64_t t = 0;
  for (const int64_t length : case_.line.lengths) {
    normal(&shared);
    Normalise(&shared);
    for (int64_t i = 0; i < length; ++i, ++t) {
      for (int64_t h = 0; h < p.hk; ++h) {
        for (HostTensor* tensor : {&inputs_.q, &inputs_.k}) {
          const bool key = tensor == &inputs_.k;
          normal(&row);
          if (case_.fill == Fill::kExact) {
            std::fill(row.begin(), row.end(), 0.0);
            const int64_t ones = key || p.norm != NormForm::kNone ? 1 : 8;
            for (int64_t j = 0; j < ones; ++j) row[random.Int(0, p.k - 1)] = random.Chance(0.5) ? 1 : -1;
          } else if (case_.fill == Fill::kPositive) {
            for (double& e : row) e = random.Uniform();
          } else if (key && (case_.fill == Fill::kEqual || case_.fill == Fill::kCollinear)) {
            const double noise = case_.fill == Fill::kEqual ? 0 : 1e-3;
            for (int32_t c = 0; c < p.k; ++c) row[c] = shared[c] + noise * row[c];
          }
          if (p.norm == NormForm::kNone && case_.fill != Fill::kExact) Normalise(&row);
          double factor = 1;
          if (case_.fill == Fill::kTiny && t % 4 == 0) factor = 0;
          if (case_.fill == Fill::kTiny && t % 4 == 1) factor = 1e-5;
          if (case_.fill == Fill::kLarge && p.norm != NormForm::kNone) factor = 100;
          for (double& e : row) e *= factor;
          SetRow(tensor, t, h * p.k, row);
        }
      }
    }
  }
}

void PreparedCase::BuildSlots(Random& random) {
  const Problem& p = case_.line.problem;
  const int32_t n = p.sequences;
  const int32_t per = p.token_states ? static_cast<int32_t>(p.max_length) : 0;
  const int32_t slots = 2 * n + 2 + n * per;
  std::vector<int32_t> order(slots);
  std::iota(order.begin(), order.end(), 0);
  if (case_.slots != Slots::kIdentity) {
    for (int32_t i = slots - 1; i > 0; --i) std::swap(order[i], order[random.Int(0, i)]);
  }
  spec_.lengths = case_.line.lengths;
  for (int32_t i = 0; i < n; ++i) {
    int32_t read = order[i], write = order[i];
    const Slots kind = case_.slots == Slots::kMixed ? static_cast<Slots>(random.Int(1, 4)) : case_.slots;
    if (kind == Slots::kApart) write = order[n + i];
    if (kind == Slots::kFresh) read = -1;
    if (kind == Slots::kMixed) write = -1;
    spec_.read_slots.push_back(read);
    spec_.write_slots.push_back(write);
  }
  const DType state = p.state;
  const int64_t row = int64_t{p.hv} * p.v * p.k;
  const size_t alignment = std::max<size_t>(p.alignment, SizeOf(state));
  const int64_t unit = static_cast<int64_t>(alignment / SizeOf(state));
  inputs_.state = HostTensor(state, {slots, p.hv, p.v, p.k}, (row + case_.pad + unit - 1) / unit * unit, alignment);
  for (const int32_t slot : spec_.read_slots) {
    for (int64_t i = 0; slot >= 0 && i < row; ++i) {
      const double x = case_.fill == Fill::kExact   ? static_cast<double>(random.Int(-4, 4))
                       : case_.fill == Fill::kLarge ? 100 * random.Normal()
                                                    : 0.25 * random.Normal();
      inputs_.state.Set(slot, i, x);
    }
  }
  if (p.token_states) {
    inputs_.token_slots = HostTensor(DType::kI32, {n, per}, 0, 4);
    for (int32_t i = 0; i < n * per; ++i) {
      inputs_.token_slots.ints()[i] = random.Chance(0.2) ? -1 : order[2 * n + i];
    }
  }
  if (p.checkpoint_every > 0) {
    int64_t rows = 0;
    for (const int64_t length : case_.line.lengths) rows += length / p.checkpoint_every;
    inputs_.checkpoints = HostTensor(state, {rows, p.hv, p.v, p.k}, 0, alignment);
  }
}

void PreparedCase::Build() {
  const Problem& p = case_.line.problem;
  Random random(case_.line.seed);
  const int64_t rows = p.tokens + case_.extra;
  const auto tensor = [&](DType dtype, std::vector<int64_t> dims, bool aligned) {
    const int64_t size = static_cast<int64_t>(SizeOf(dtype));
    const int64_t bytes = aligned ? std::max<int64_t>(p.alignment, size) : size;
    int64_t row = case_.pad;
    int64_t packed = 1;
    for (size_t i = 1; i < dims.size(); ++i) packed *= dims[i];
    row += packed;
    const int64_t unit = bytes / size;
    return HostTensor(dtype, std::move(dims), (row + unit - 1) / unit * unit, static_cast<size_t>(bytes));
  };
  inputs_.q = tensor(p.io, {rows, p.hk, p.k}, true);
  inputs_.k = tensor(p.io, {rows, p.hk, p.k}, true);
  inputs_.v = tensor(p.io, {rows, p.hv, p.v}, true);
  inputs_.out = tensor(p.io, {rows, p.hv, p.v}, true);
  inputs_.gate = p.kda() ? tensor(p.gate_dtype, {rows, p.hv, p.k}, true) : tensor(p.gate_dtype, {rows, p.hv}, false);
  inputs_.beta = tensor(p.beta_dtype, {rows, p.hv}, false);
  const bool plain = case_.fill == Fill::kExact || case_.fill == Fill::kEqual || case_.fill == Fill::kCollinear;
  if (p.has_a_log) {
    inputs_.a_log = HostTensor(DType::kF32, {p.hv}, 0, 4);
    for (int64_t h = 0; h < p.hv; ++h) {
      double a = plain ? 1 : random.Uniform(1, 16);
      if (case_.fill == Fill::kStrong || case_.fill == Fill::kMixed || case_.fill == Fill::kNoDecay) a = 16;
      if (p.gate == GateForm::kBounded && !plain) a = random.Uniform(0.5, 2);
      inputs_.a_log.Set(h, 0, std::log(a));
    }
  }
  if (p.has_dt_bias) {
    const int64_t width = p.kda() ? p.k : 1;
    inputs_.dt_bias = p.kda() ? HostTensor(DType::kF32, {p.hv, p.k}, 0, 4) : HostTensor(DType::kF32, {1, p.hv}, 0, 4);
    for (int64_t i = 0; i < p.hv * width; ++i) {
      const double dt = std::exp(random.Uniform(std::log(0.001), std::log(0.1)));
      // Inverse softplus, as models initialise it; constant where the case fixes the decay.
      double bias = case_.fill == Fill::kRandom ? dt + std::log(-std::expm1(-dt)) : 0;
      if (case_.fill == Fill::kStrong || case_.fill == Fill::kMixed) bias = 2;
      inputs_.dt_bias.Set(p.kda() ? i / width : 0, p.kda() ? i % width : i, bias);
    }
  }
  BuildKeys(random);
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t h = 0; h < p.hv; ++h) {
      for (int64_t i = 0; i < p.v; ++i) {
        double x = random.Normal();
        if (case_.fill == Fill::kExact) x = static_cast<double>(random.Int(-3, 3));
        if (case_.fill == Fill::kLarge) x *= p.io == DType::kF16 ? 100 : 2000;
        inputs_.v.Set(t, h * p.v + i, x);
      }
      for (int64_t c = 0; c < (p.kda() ? p.k : 1); ++c) {
        const bool strong = case_.fill == Fill::kStrong || (case_.fill == Fill::kMixed && random.Chance(0.5));
        inputs_.gate.Set(t, p.kda() ? h * p.k + c : h, GateInput(random, h, strong));
      }
      inputs_.beta.Set(t, h, BetaInput(random));
    }
  }
  BuildSlots(random);
  int64_t t = 0;
  for (int32_t n = 0; n < p.sequences; ++n) {
    for (int64_t i = 0; i < case_.line.lengths[n]; ++i, ++t) {
      if (n != case_.nan) continue;
      for (auto* x : {&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.gate, &inputs_.beta}) x->PoisonRow(t);
    }
  }
}

}  // namespace fluvial::ops::delta_rule
