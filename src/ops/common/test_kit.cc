// SPDX-License-Identifier: Apache-2.0
#include "ops/common/test_kit.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace fluvial::ops::test_kit {
namespace {

constexpr size_t kGuard = 256;

}  // namespace

double Random::Normal() {
  const double u = 1 - Uniform();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * Uniform());
}

HostTensor::HostTensor(DType dtype, std::vector<int64_t> dims, int64_t pitch, size_t alignment)
    : dtype_(dtype), dims_(std::move(dims)), row_elements_(1), first_(kGuard + alignment) {
  FLUVIAL_CHECK(!dims_.empty() && dims_.size() <= TensorView::kMaxRank);
  for (size_t i = 1; i < dims_.size(); ++i) row_elements_ *= dims_[i];
  pitch_ = pitch == 0 ? row_elements_ : pitch;
  FLUVIAL_CHECK(pitch_ >= row_elements_);
  bytes_.assign(first_ + static_cast<size_t>(rows() * pitch_) * SizeOf(dtype_) + kGuard, kPoison);
}

TensorView HostTensor::ViewAt(void* base) const {
  TensorView t;
  t.data = static_cast<char*>(base) + first_;
  t.dtype = dtype_;
  t.rank = static_cast<int>(dims_.size());
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.dims[i] = dims_[i];
    t.strides[i] = i == 0 ? pitch_ : stride;
    stride *= dims_[i];
  }
  return t;
}

std::span<const unsigned char> HostTensor::RowBytes(int64_t row) const {
  const size_t size = SizeOf(dtype_);
  return {bytes_.data() + first_ + static_cast<size_t>(row * pitch_) * size, static_cast<size_t>(row_elements_) * size};
}

void HostTensor::PoisonRow(int64_t row) {
  const size_t size = SizeOf(dtype_);
  auto* begin = bytes_.data() + first_ + static_cast<size_t>(row * pitch_) * size;
  std::fill(begin, begin + static_cast<size_t>(row_elements_) * size, kPoison);
}

bool HostTensor::PoisonIntact() const {
  const size_t size = SizeOf(dtype_);
  const auto poisoned = [&](size_t begin, size_t end) {
    return std::all_of(bytes_.begin() + begin, bytes_.begin() + end, [](unsigned char b) { return b == kPoison; });
  };
  if (!poisoned(0, first_)) return false;
  for (int64_t r = 0; r < rows(); ++r) {
    const size_t row = first_ + static_cast<size_t>(r * pitch_) * size;
    if (!poisoned(row + static_cast<size_t>(row_elements_) * size, row + static_cast<size_t>(pitch_) * size)) {
      return false;
    }
  }
  return poisoned(bytes_.size() - kGuard, bytes_.size());
}

int64_t HostTensor::CountNan(int64_t begin, int64_t end) const {
  int64_t count = 0;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t i = 0; i < row_elements_; ++i) count += std::isnan(Get(r, i)) ? 1 : 0;
  }
  return count;
}

namespace {
// Behind every tensor on the device, poisoned: a row or two of most problems.
constexpr size_t kGuardBytes = size_t{32} << 10;
}  // namespace

Result<Placed> Placed::Make(Stream& stream, const HostTensor& host) {
  Placed p;
  const DeviceInfo& device = stream.device();
  const size_t bytes = host.bytes().size();
  FLUVIAL_ASSIGN_OR_RETURN(p.buffer_, Buffer::Allocate(device.kind, bytes + kGuardBytes, device.index));
  FLUVIAL_RETURN_IF_ERROR(Copy(stream, p.buffer_.data(), device.kind, host.bytes().data(), DeviceKind::kCpu, bytes));
  const std::vector<unsigned char> guard(kGuardBytes, kPoison);
  FLUVIAL_RETURN_IF_ERROR(Copy(stream, static_cast<char*>(p.buffer_.data()) + bytes, device.kind, guard.data(),
                               DeviceKind::kCpu, kGuardBytes));
  p.view_ = host.ViewAt(p.buffer_.data());
  return p;
}

Status Placed::Fetch(Stream& stream, HostTensor* host) const {
  const size_t bytes = host->bytes().size();
  FLUVIAL_CHECK(bytes + kGuardBytes == buffer_.bytes());
  FLUVIAL_RETURN_IF_ERROR(Copy(stream, host->bytes().data(), DeviceKind::kCpu, buffer_.data(), buffer_.kind(), bytes));
  std::vector<unsigned char> guard(kGuardBytes);
  FLUVIAL_RETURN_IF_ERROR(Copy(stream, guard.data(), DeviceKind::kCpu, static_cast<const char*>(buffer_.data()) + bytes,
                               buffer_.kind(), kGuardBytes));
  FLUVIAL_RETURN_IF_ERROR(stream.Synchronize());
  for (const unsigned char byte : guard) {
    if (byte != kPoison) return Status::Failed("memory behind a tensor was written");
  }
  return Status::Ok();
}

}  // namespace fluvial::ops::test_kit
