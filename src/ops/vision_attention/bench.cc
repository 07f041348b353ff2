// SPDX-License-Identifier: Apache-2.0
#include "ops/vision_attention/bench.h"

#include <algorithm>
#include <optional>

#include "ops/vision_attention/cudnn.h"

namespace fluvial::ops::vision_attention {

double MinimumBytes(const ProblemLine& line) {
  const Problem& p = line.problem;
  return 4.0 * static_cast<double>(p.tokens) * p.heads * p.d * static_cast<double>(SizeOf(p.io));
}

double MultiplyAdds(const ProblemLine& line) {
  const Problem& p = line.problem;
  return 2.0 * static_cast<double>(p.pairs) * p.heads * p.d;
}

Result<Measurement> Measure(Stream& stream, const VisionBackend& backend, const ProblemLine& line, int min_repeats,
                            double min_seconds) {
  const Problem& p = line.problem;
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  const DeviceInfo& device = stream.device();
  if (const Check check = backend.check(p, device); !check.ok()) {
    return Status::Refused(std::string(kOpName) + ": backend '" + std::string(backend.name) +
                           "' cannot run this: " + check.reason());
  }
  test_kit::Random random(line.seed);
  const int64_t rows = p.padded != 0 ? p.padded * p.sequences : p.tokens, width = int64_t{p.heads} * p.d;
  const auto normal = [](test_kit::Random& r) { return r.Normal(); };
  FLUVIAL_ASSIGN_OR_RETURN(const Buffer qkv,
                           FillBuffer(stream, p.io, std::max<int64_t>(rows * 3 * width, 1), random, normal));
  FLUVIAL_ASSIGN_OR_RETURN(
      const Buffer out,
      Buffer::Allocate(device.kind, static_cast<size_t>(rows * width + 1) * SizeOf(p.io), device.index));
  FLUVIAL_ASSIGN_OR_RETURN(
      const Buffer lse,
      Buffer::Allocate(device.kind, static_cast<size_t>(rows * p.heads + 1) * sizeof(float), device.index));
  Args a;
  TensorView* views[] = {&a.q, &a.k, &a.v};
  for (int64_t i = 0; i < 3; ++i) {
    void* data = static_cast<char*>(qkv.data()) + i * width * static_cast<int64_t>(SizeOf(p.io));
    *views[i] = p.padded != 0 ? TensorView(data, p.io, {p.sequences, p.padded, p.heads, p.d},
                                           {p.padded * 3 * width, 3 * width, p.d, 1})
                              : TensorView(data, p.io, {p.tokens, p.heads, p.d}, {3 * width, p.d, 1});
  }
  a.out = p.padded != 0 ? TensorView(out.data(), p.io, {p.sequences, p.padded, p.heads, p.d})
                        : TensorView(out.data(), p.io, {p.tokens, p.heads, p.d});
  if (p.lse) {
    a.lse = p.padded != 0 ? TensorView(lse.data(), DType::kF32, {p.sequences, p.padded, p.heads})
                          : TensorView(lse.data(), DType::kF32, {p.tokens, p.heads});
  }
  FLUVIAL_ASSIGN_OR_RETURN(const SequencePlan plan, SequencePlan::Make(stream, {line.lengths, {}, {}}));
  a.plan = &plan;
  std::optional<RaggedPlan> ragged;
  if (backend.name == "cudnn") {
    FLUVIAL_ASSIGN_OR_RETURN(ragged,
                             RaggedPlan::Make(stream, line.lengths, p.padded, TokenStridesOf(p, a), CudnnRules()));
    a.ragged = &*ragged;
  }
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  FLUVIAL_ASSIGN_OR_RETURN(const Buffer workspace,
                           Buffer::Allocate(device.kind, backend.workspace_bytes(p, device), device.index));
  FLUVIAL_ASSIGN_OR_RETURN(Measurement m,
                           MeasureRuns(
                               stream, [&] { return backend.run(stream, p, a, {workspace.data(), workspace.bytes()}); },
                               min_repeats, min_seconds));
  m.bytes = MinimumBytes(line);
  m.multiply_adds = MultiplyAdds(line);
  return m;
}

}  // namespace fluvial::ops::vision_attention
