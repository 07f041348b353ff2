// SPDX-License-Identifier: Apache-2.0
#include "ops/common/measure.h"

#include <time.h>

#include <algorithm>
#include <memory>

namespace fluvial::ops {
namespace {

double ProcessMicroseconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

}  // namespace

Result<Measurement> MeasureRuns(Stream& stream, const std::function<Status()>& run, int min_repeats,
                                double min_seconds) {
  const DeviceInfo& device = stream.device();
  std::unique_ptr<Event> start = MakeCpuEvent(), stop = MakeCpuEvent();
  if (device.kind == DeviceKind::kCuda) {
    FLUVIAL_ASSIGN_OR_RETURN(start, MakeCudaEvent(device.index));
    FLUVIAL_ASSIGN_OR_RETURN(stop, MakeCudaEvent(device.index));
  }
  const auto once = [&]() -> Result<double> {
    FLUVIAL_RETURN_IF_ERROR(start->Record(stream));
    FLUVIAL_RETURN_IF_ERROR(run());
    FLUVIAL_RETURN_IF_ERROR(stop->Record(stream));
    FLUVIAL_RETURN_IF_ERROR(stop->Synchronize());
    FLUVIAL_ASSIGN_OR_RETURN(const double ms, stop->MillisecondsSince(*start));
    return ms * 1e3;
  };
  Measurement m;
  FLUVIAL_ASSIGN_OR_RETURN(double us, once());
  for (double total = 0; static_cast<int>(m.us.size()) < min_repeats || total < min_seconds * 1e6;) {
    const double active = ProcessMicroseconds();
    FLUVIAL_ASSIGN_OR_RETURN(us, once());
    if (device.kind == DeviceKind::kCpu) {
      const double used = (ProcessMicroseconds() - active) / stream.pool().threads();
      m.best_active_us = m.us.empty() ? used : std::min(m.best_active_us, used);
    }
    m.us.push_back(us);
    total += us;
  }
  std::vector<double> sorted = m.us;
  std::sort(sorted.begin(), sorted.end());
  m.best_us = sorted.front();
  m.median_us = sorted[sorted.size() / 2];
  return m;
}

Result<Buffer> FillBuffer(Stream& stream, DType dtype, int64_t elements, test_kit::Random& random,
                          double (*value)(test_kit::Random&)) {
  constexpr int64_t kPeriod = 65521;  // prime, so that rows differ
  const size_t size = SizeOf(dtype), bytes = static_cast<size_t>(elements) * size;
  std::vector<char> period(kPeriod * size);
  for (int64_t i = 0; i < kPeriod; ++i) StoreFromDouble(period.data(), dtype, i, value(random));
  const DeviceInfo& device = stream.device();
  FLUVIAL_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(device.kind, bytes, device.index));
  for (size_t at = 0; at < bytes; at += period.size()) {
    FLUVIAL_RETURN_IF_ERROR(Copy(stream, static_cast<char*>(buffer.data()) + at, device.kind, period.data(),
                                 DeviceKind::kCpu, std::min(period.size(), bytes - at)));
  }
  return buffer;
}

}  // namespace fluvial::ops
