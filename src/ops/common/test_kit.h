// SPDX-License-Identifier: Apache-2.0
// What operator tests, `fluvial verify` and benchmarks share: reproducible random numbers, host tensors whose
// gaps and guards are poisoned, and their copies on the device under test. No gtest here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/tensor_view.h"
#include "device/device.h"

namespace fluvial::ops::test_kit {

/// Reproducible on every platform (no std distributions).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix64(seed)) {}
  uint64_t Bits() { return Mix64(state_++); }
  /// [0, 1)
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }
  double Uniform(double low, double high) { return low + (high - low) * Uniform(); }
  /// Standard normal (Box-Muller).
  double Normal();
  /// [low, high]
  int64_t Int(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(double p) { return Uniform() < p; }

 private:
  uint64_t state_;
};

/// Byte of all poison: 0xff.. is NaN in every floating type here and -1 in integers.
inline constexpr unsigned char kPoison = 0xff;

/// A tensor in host memory. Rows (the outermost dimension) may be padded; padding and a guard on either side are
/// poisoned, and so are all elements until they are set.
class HostTensor {
 public:
  HostTensor() = default;
  /// `pitch` elements from row to row (0: packed). The first element lies `alignment` bytes behind an address
  /// aligned to 256, so that nothing is better aligned than promised.
  HostTensor(DType dtype, std::vector<int64_t> dims, int64_t pitch = 0, size_t alignment = 16);

  bool defined() const { return !bytes_.empty(); }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& dims() const { return dims_; }
  int64_t rows() const { return dims_.empty() ? 0 : dims_[0]; }
  int64_t row_elements() const { return row_elements_; }
  int64_t pitch() const { return pitch_; }

  void Set(int64_t row, int64_t i, double value) { StoreFromDouble(data(), dtype_, row * pitch_ + i, value); }
  double Get(int64_t row, int64_t i) const { return LoadAsDouble(data(), dtype_, row * pitch_ + i); }
  int32_t* ints() { return reinterpret_cast<int32_t*>(data()); }
  /// Sets all elements of a row back to poison.
  void PoisonRow(int64_t row);

  void* data() { return bytes_.data() + first_; }
  const void* data() const { return bytes_.data() + first_; }
  /// A view of these strides over any copy of bytes() that starts at `base`.
  TensorView ViewAt(void* base) const;
  TensorView view() { return ViewAt(bytes_.data()); }

  std::span<unsigned char> bytes() { return bytes_; }
  std::span<const unsigned char> bytes() const { return bytes_; }
  /// Bytes of one row's elements.
  std::span<const unsigned char> RowBytes(int64_t row) const;
  /// True when guards and row padding still hold poison.
  bool PoisonIntact() const;
  /// NaN elements among the rows in [begin, end).
  int64_t CountNan(int64_t begin, int64_t end) const;

 private:
  DType dtype_ = DType::kF32;
  std::vector<int64_t> dims_;
  int64_t row_elements_ = 0, pitch_ = 0;
  size_t first_ = 0;
  std::vector<unsigned char> bytes_;
};

/// A copy of a HostTensor, poison included, on the device of a stream.
class Placed {
 public:
  static Result<Placed> Make(Stream& stream, const HostTensor& host);
  TensorView view() const { return view_; }
  /// Copies back into `host` (the tensor it was made from, or a copy of it). Synchronises. kFailed when something wrote
  /// behind the tensor.
  Status Fetch(Stream& stream, HostTensor* host) const;

 private:
  Buffer buffer_;
  TensorView view_;
};

}  // namespace fluvial::ops::test_kit
