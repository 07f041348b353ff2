// SPDX-License-Identifier: Apache-2.0
// gemm: y = x * w^T + bias, the linear layer of every model.
//
//     y[m, n] = round( sum_k x[m, k] * w[n, k]  +  bias[n] )        m < M, n < N, k < K
//
// Weights are row-major [N, K] exactly as a checkpoint stores them and may lie in a mapped file: they are read in
// place, aligned to their element size only. Products and sums are fp32 (a product of two bf16 values is exact in
// fp32); the bias is added in fp32; the only rounding to the output type is the last one, to nearest even.
// K = 0 gives y = round(bias); M = 0 or N = 0 does nothing.
//
// Order of the sum. `cpu` and `cpu_bf16` each fix the order in which k is summed (given the instruction set), whatever
// M, N, strides and the number of threads: row r of a batch equals the same row computed alone, bit for bit, and so
// does a column of a fused weight. `onednn` promises no such thing. See README.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "ops/common/backend.h"

namespace fluvial::ops::gemm {

class PackedWeight;

/// Everything selection may depend on. Value type.
struct Problem {
  int64_t m = 0;           ///< rows of x and y (tokens)
  int64_t n = 0;           ///< rows of w (outputs)
  int64_t k = 0;           ///< inner dimension
  DType x = DType::kBF16;  ///< fp32, bf16 or fp16
  DType w = DType::kBF16;  ///< fp32, bf16 or fp16
  DType y = DType::kBF16;  ///< fp32, bf16 or fp16
  bool has_bias = false;
  DType bias = DType::kBF16;  ///< fp32, bf16 or fp16; ignored unless has_bias
  /// Args carry a PackedWeight: only the backend that made it can run.
  bool packed = false;

  friend bool operator==(const Problem&, const Problem&) = default;
  uint64_t Hash() const;
  /// "gemm m=1 n=3584 k=1024 x=bf16 w=bf16 y=bf16", then "bias=fp32" and "packed=1" when they apply.
  std::string ToString() const;
};

/// Inverse of Problem::ToString; `seed=` is accepted and stored (default 1). Unknown fields are errors.
struct ProblemLine {
  Problem problem;
  uint64_t seed = 1;
};
Result<ProblemLine> ParseProblemLine(std::string_view line);

/// Tensors of one call. Inner stride 1 everywhere; rows of x, w and y may have any pitch >= their length
/// (columns between K or N and the pitch are neither read nor written). y must not overlap x, w or bias.
struct Args {
  TensorView x;     ///< x dtype [M, K]
  TensorView w;     ///< w dtype [N, K]; may be undefined when `packed` is set
  TensorView bias;  ///< bias dtype [N], unit stride; undefined unless has_bias
  TensorView y;     ///< y dtype [M, N]
  const PackedWeight* packed = nullptr;
};

using GemmBackend = Backend<Problem, Args>;

/// The Problem that `args` describe (dims, dtypes, bias, packed).
Problem ProblemOf(const Args& args);

/// The contract itself, the same for every backend: kInvalidArgument naming field, value and rule.
Status Validate(const Problem& problem);

/// That `args` fit `problem`: shapes, dtypes, strides, pointers.
Status Validate(const Problem& problem, const Args& args);

/// The visible ordered list, reference last: cpu_bf16 (native bf16 dot products of AVX512-BF16; bf16 x bf16 only;
/// subnormal inputs and sums count as zero), cpu (fp32 FMA on any instruction set), onednn, reference.
std::span<const GemmBackend> Backends();

/// Validate + Select over Backends().
Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference);

/// Weights laid out once for one backend (oneDNN's blocked formats; `cpu` needs none and reads weights in place).
/// Costs a second copy of the weight in memory (about N*K*SizeOf(w), rounded up by the format): the mapped file
/// stays as it is, and its pages may be dropped by the system. Immutable; usable from any thread.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  /// Backend that made it and alone can use it.
  virtual std::string_view backend() const = 0;
  virtual size_t bytes() const = 0;
  virtual DType dtype() const = 0;
  virtual int64_t n() const = 0;
  virtual int64_t k() const = 0;
};

/// Packs `w` [N, K] for `backend` ("onednn"), tuned for calls with about `typical_m` rows of type `x`. kRefused with
/// the reason when the backend is absent, has no packed form ("cpu") or cannot take these types.
Result<std::shared_ptr<const PackedWeight>> Pack(std::string_view backend, const TensorView& w, DType x, DType y,
                                                 int64_t typical_m);

/// The linear layers of a model: remembers the choice per problem so that a step pays for selection once. Not
/// thread-safe; one per engine thread.
class Linear {
 public:
  /// `preference`: "auto" or a backend name, used for every problem.
  Linear(const DeviceInfo& device, std::string_view preference);
  ~Linear();
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;

  /// y = x w^T (+ bias). Errors: Validate's, Choose's, workspace too small, the backend's.
  Status Run(Stream& stream, const Args& args, Workspace workspace);

  /// Bytes that Run may need for `problem` and every problem with smaller m, n and k of the same types. kRefused /
  /// kInvalidArgument as Choose.
  Result<size_t> WorkspaceBytes(const Problem& problem);

  /// Name of the backend that Run uses for `problem`.
  Result<std::string_view> BackendName(const Problem& problem);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fluvial::ops::gemm
