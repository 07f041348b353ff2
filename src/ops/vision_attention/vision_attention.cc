// SPDX-License-Identifier: Apache-2.0
// Hash and text form of problems; the list of backends and the choice among them. Checks are in validate.cc.
#include "ops/vision_attention/vision_attention.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "base/text_form.h"
#include "ops/vision_attention/backends.h"

namespace fluvial::ops::vision_attention {

float DefaultScale(int32_t d) { return 1.0f / std::sqrt(static_cast<float>(std::max(d, 1))); }

uint64_t Problem::Hash() const {
  Hasher h;
  for (const int64_t x : {int64_t{heads}, int64_t{d}, int64_t{sequences}, int64_t{alignment}, int64_t{workspace_mb},
                          padded, tokens, max_length, pairs}) {
    h.Add(static_cast<uint64_t>(x));
  }
  return h.Add(static_cast<uint64_t>(io)).Add(scale).Add(uint64_t{lse}).Get();
}

std::string Problem::ToString() const {
  std::string s(kOpName);
  s += " heads=" + std::to_string(heads) + " d=" + std::to_string(d) + " io=" + std::string(Name(io));
  if (scale != DefaultScale(d)) s += " scale=" + FormatFloat(scale);
  if (lse) s += " lse=1";
  if (padded != 0) s += " padded=" + std::to_string(padded);
  if (alignment != 16) s += " alignment=" + std::to_string(alignment);
  if (workspace_mb != 0) s += " workspace_mb=" + std::to_string(workspace_mb);
  return s;
}

void SetLengths(Problem& p, std::span<const int64_t> lengths) {
  p.tokens = p.max_length = p.pairs = 0;
  p.sequences = static_cast<int32_t>(lengths.size());
  for (const int64_t n : lengths) {
    p.max_length = std::max(p.max_length, n);
    // Sums beyond int64 stay at its end; no memory holds such tokens, and costs only have to stay large.
    int64_t square = 0;
    if (__builtin_mul_overflow(n, n, &square) || __builtin_add_overflow(p.pairs, square, &p.pairs)) p.pairs = INT64_MAX;
    if (__builtin_add_overflow(p.tokens, n, &p.tokens)) p.tokens = INT64_MAX;
  }
}

std::span<const VisionBackend> Backends() {
  static const VisionBackend kList[] = {kCuda, kCudnn, kCpuBf16, kCpu, kReference};
  return kList;
}

Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference) {
  FLUVIAL_RETURN_IF_ERROR(Validate(problem));
  return Select(Backends(), kOpName, problem, device, preference);
}

Result<ProblemLine> ParseProblemLine(std::string_view text) {
  FLUVIAL_ASSIGN_OR_RETURN(TextFields f, TextFields::Parse(text));
  if (f.name() != kOpName) {
    return Status::InvalidArgument("problem line: expected " + std::string(kOpName) + ", got '" + f.name() + "'");
  }
  ProblemLine line;
  Problem& p = line.problem;
  auto take = [&f](std::string_view key, int64_t fallback, int64_t high, auto* to) -> Status {
    FLUVIAL_ASSIGN_OR_RETURN(const int64_t v, f.TakeInt(key, fallback));
    if (v < 0 || v > high) {
      return Status::InvalidArgument(std::string(kOpName) + ": " + std::string(key) + " is " + std::to_string(v) +
                                     ", it must be 0.." + std::to_string(high));
    }
    *to = static_cast<std::remove_reference_t<decltype(*to)>>(v);
    return Status::Ok();
  };
  FLUVIAL_RETURN_IF_ERROR(take("heads", 0, INT32_MAX, &p.heads));
  FLUVIAL_RETURN_IF_ERROR(take("d", p.d, INT32_MAX, &p.d));
  if (f.Has("io")) {
    FLUVIAL_ASSIGN_OR_RETURN(p.io, ParseDType(f.Take("io")));
  }
  FLUVIAL_ASSIGN_OR_RETURN(p.scale, f.TakeFloat("scale", DefaultScale(p.d)));
  FLUVIAL_RETURN_IF_ERROR(take("lse", 0, 1, &p.lse));
  FLUVIAL_RETURN_IF_ERROR(take("padded", 0, int64_t{1} << 40, &p.padded));
  FLUVIAL_RETURN_IF_ERROR(take("alignment", p.alignment, 16, &p.alignment));
  FLUVIAL_RETURN_IF_ERROR(take("workspace_mb", 0, 1 << 20, &p.workspace_mb));
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t seed, f.TakeInt("seed", 1));
  line.seed = static_cast<uint64_t>(seed);
  if (!f.Has("lens")) {
    return Status::InvalidArgument("problem line: no lens=: give the sequence lengths, e.g. lens=1024,4096,216x64");
  }
  FLUVIAL_ASSIGN_OR_RETURN(line.lengths, ParseLengths(f.Take("lens")));
  FLUVIAL_RETURN_IF_ERROR(f.Finish());
  SetLengths(p, line.lengths);
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  return line;
}

std::string FormatProblemLine(const ProblemLine& line) {
  return line.problem.ToString() + " lens=" + FormatLengths(line.lengths) +
         (line.seed != 1 ? " seed=" + std::to_string(static_cast<int64_t>(line.seed)) : "");
}

}  // namespace fluvial::ops::vision_attention
