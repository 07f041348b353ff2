// SPDX-License-Identifier: Apache-2.0
// The CPU device, made-up devices, and the answers about CUDA of a machine or a build that has none.
#include "device/device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fluvial {
namespace {

TEST(CpuDevice, DescribesThisMachine) {
  const DeviceInfo info = CpuDeviceInfo(3);
  EXPECT_EQ(info.kind, DeviceKind::kCpu);
  EXPECT_EQ(info.multiprocessors, 3);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GT(info.memory_bytes, size_t{1} << 20);
  EXPECT_EQ(info.Arch(), "cpu");
  EXPECT_FALSE(info.assumed);
}

TEST(CpuStream, HasAPoolOfTheAskedSize) {
  const auto stream = MakeCpuStream(2);
  EXPECT_EQ(stream->pool().threads(), 2);
  EXPECT_EQ(stream->device().multiprocessors, 2);
  EXPECT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(stream->native(), nullptr);
  EXPECT_FALSE(stream->capturing());
}

TEST(CpuEvent, MeasuresForwardTime) {
  const auto stream = MakeCpuStream(1);
  const auto a = MakeCpuEvent(), b = MakeCpuEvent();
  ASSERT_TRUE(a->Record(*stream).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(b->Record(*stream).ok());
  const auto ms = b->MillisecondsSince(*a);
  ASSERT_TRUE(ms.ok());
  EXPECT_GE(*ms, 5.0);
}

class OtherEvent : public Event {
 public:
  Status Record(Stream&) override { return Status::Ok(); }
  Status Synchronize() override { return Status::Ok(); }
  Result<double> MillisecondsSince(const Event&) const override { return 0.0; }
};

TEST(CpuEvent, AnotherDevicesEventIsRefused) {
  const auto r = MakeCpuEvent()->MillisecondsSince(OtherEvent());
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kInvalidArgument);
}

TEST(Buffer, IsAlignedAndMoves) {
  auto made = Buffer::Allocate(DeviceKind::kCpu, 1000);
  ASSERT_TRUE(made.ok());
  Buffer a = std::move(*made);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 256, 0u);
  EXPECT_EQ(a.bytes(), 1000u);
  std::memset(a.data(), 1, a.bytes());
  void* p = a.data();
  Buffer b(std::move(a));
  EXPECT_EQ(b.data(), p);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): moved-from is empty by contract
  Buffer c;
  c = std::move(b);
  EXPECT_EQ(c.data(), p);
}

TEST(Buffer, EmptyHasNoMemory) {
  const auto b = Buffer::Allocate(DeviceKind::kCpu, 0);
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->data(), nullptr);
  EXPECT_EQ(b->bytes(), 0u);
}

TEST(Buffer, MoreThanThereIsIsAResourceError) {
  for (size_t bytes : {size_t{1} << 62, std::numeric_limits<size_t>::max()}) {
    const auto b = Buffer::Allocate(DeviceKind::kCpu, bytes);
    ASSERT_FALSE(b.ok());
    EXPECT_EQ(b.status().code(), Code::kResource);
    EXPECT_NE(b.status().message().find(std::to_string(bytes)), std::string::npos);
  }
}

TEST(Copy, BetweenCpuBuffers) {
  const auto stream = MakeCpuStream(1);
  std::vector<int> from{1, 2, 3}, to(3);
  ASSERT_TRUE(Copy(*stream, to.data(), DeviceKind::kCpu, from.data(), DeviceKind::kCpu, 3 * sizeof(int)).ok());
  EXPECT_EQ(to, from);
  EXPECT_TRUE(Copy(*stream, nullptr, DeviceKind::kCpu, nullptr, DeviceKind::kCpu, 0).ok());
}

TEST(AssumedDevice, KnownArchitectures) {
  for (const char* arch : {"sm_90", "sm_100", "sm_103", "sm_120"}) {
    const auto d = AssumedDevice(arch);
    ASSERT_TRUE(d.ok()) << arch;
    EXPECT_EQ(d->Arch(), arch);
    EXPECT_EQ(d->kind, DeviceKind::kCuda);
    EXPECT_TRUE(d->assumed);
    EXPECT_GT(d->multiprocessors, 0);
    EXPECT_GT(d->memory_bytes, 0u);
    EXPECT_GT(d->shared_memory_per_block, 0u);
  }
  const auto cpu = AssumedDevice("cpu");
  ASSERT_TRUE(cpu.ok());
  EXPECT_EQ(cpu->Arch(), "cpu");
  EXPECT_TRUE(cpu->assumed);
}

TEST(AssumedDevice, UnknownNamesListTheChoices) {
  for (const char* arch : {"", "sm_9", "sm_90a", "CPU", "h100"}) {
    const auto d = AssumedDevice(arch);
    ASSERT_FALSE(d.ok()) << arch;
    EXPECT_EQ(d.status().code(), Code::kInvalidArgument);
    EXPECT_NE(d.status().message().find("sm_90, sm_100"), std::string::npos);
  }
}

TEST(Cuda, AbsenceIsExplainedAndNeverCrashes) {
  if (CudaDeviceCount() > 0) {
    EXPECT_EQ(CudaUnavailableReason(), "");
    EXPECT_TRUE(CudaDeviceInfo(0).ok());
    const auto beyond = CudaDeviceInfo(CudaDeviceCount());
    ASSERT_FALSE(beyond.ok());
    EXPECT_EQ(beyond.status().code(), Code::kInvalidArgument);
    return;
  }
  EXPECT_NE(CudaUnavailableReason(), "");
  for (const Status& s : {CudaDeviceInfo(0).status(), MakeCudaStream(0).status()}) {
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find("use --device cpu"), std::string::npos) << s.message();
  }
  EXPECT_FALSE(MakeCudaEvent(0).ok());
  EXPECT_FALSE(Buffer::Allocate(DeviceKind::kCuda, 16).ok());
}

TEST(Cuda, NegativeIndexIsRefused) { EXPECT_EQ(CudaDeviceInfo(-1).status().code(), Code::kInvalidArgument); }

}  // namespace
}  // namespace fluvial
