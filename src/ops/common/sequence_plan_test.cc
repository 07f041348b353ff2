// SPDX-License-Identifier: Apache-2.0
#include "ops/common/sequence_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace fluvial::ops {
namespace {

template <class T>
std::vector<T> V(std::span<const T> s) {
  return {s.begin(), s.end()};
}

class SequencePlanTest : public ::testing::Test {
 protected:
  std::unique_ptr<Stream> stream_ = MakeCpuStream(1);
};

TEST_F(SequencePlanTest, OffsetsOrderAndDefaultSlots) {
  auto plan = SequencePlan::Make(*stream_, {.lengths = {3, 0, 7, 3}, .read_slots = {}, .write_slots = {}});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(V(plan->offsets()), (std::vector<int64_t>{0, 3, 3, 10, 13}));
  EXPECT_EQ(V(plan->order()), (std::vector<int32_t>{2, 0, 3, 1})) << "longest first, equal lengths in order";
  EXPECT_EQ(V(plan->read_slots()), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(V(plan->write_slots()), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(plan->tokens(), 13);
  EXPECT_EQ(plan->sequences(), 4);
  EXPECT_EQ(plan->max_length(), 7);
  EXPECT_EQ(plan->max_slot(), 3);
  EXPECT_EQ(plan->generation(), 1u);
}

TEST_F(SequencePlanTest, NoSequencesAndOnlyEmptyOnes) {
  auto none = SequencePlan::Make(*stream_, {});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(V(none->offsets()), std::vector<int64_t>{0});
  EXPECT_EQ(none->max_slot(), -1);
  auto empty = SequencePlan::Make(*stream_, {.lengths = {0, 0}, .read_slots = {4, -1}, .write_slots = {4, 9}});
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->tokens(), 0);
  EXPECT_EQ(empty->max_length(), 0);
  EXPECT_EQ(empty->max_slot(), 9);
}

TEST_F(SequencePlanTest, DeviceSideOfACpuPlanIsTheSameData) {
  auto plan = SequencePlan::Make(*stream_, {.lengths = {2, 5}, .read_slots = {-1, 8}, .write_slots = {3, -1}});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->device_header()->tokens, 7);
  EXPECT_EQ(plan->device_header()->sequences, 2);
  EXPECT_EQ(plan->device_header()->max_length, 5);
  EXPECT_EQ(plan->device_header()->generation, 1u);
  EXPECT_EQ(plan->device_offsets()[2], 7);
  EXPECT_EQ(plan->device_read_slots()[1], 8);
  EXPECT_EQ(plan->device_write_slots()[0], 3);
  EXPECT_EQ(plan->device_order()[0], 1);
  EXPECT_EQ(plan->max_slot(), 8);
}

TEST_F(SequencePlanTest, RefillKeepsAddressesAndChangesTheGeneration) {
  auto plan = SequencePlan::Create(*stream_, {.max_tokens = 100, .max_sequences = 4, .max_length = 0});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->generation(), 0u);
  const auto* offsets = plan->device_offsets();
  const uint64_t id = plan->id();
  ASSERT_TRUE(plan->Refill(*stream_, {.lengths = {60, 40}, .read_slots = {}, .write_slots = {}}).ok());
  EXPECT_EQ(plan->generation(), 1u);
  // The same contents again: still a new generation, so nobody compares contents.
  ASSERT_TRUE(plan->Refill(*stream_, {.lengths = {60, 40}, .read_slots = {}, .write_slots = {}}).ok());
  EXPECT_EQ(plan->generation(), 2u);
  ASSERT_TRUE(plan->Refill(*stream_, {.lengths = {1, 2, 3, 4}, .read_slots = {}, .write_slots = {}}).ok());
  EXPECT_EQ(plan->device_header()->generation, 3u);
  EXPECT_EQ(plan->device_offsets(), offsets);
  EXPECT_EQ(offsets[4], 10);
  EXPECT_EQ(plan->id(), id);
  ASSERT_TRUE(plan->Refill(*stream_, {}).ok());
  EXPECT_EQ(plan->sequences(), 0);
  EXPECT_EQ(plan->max_slot(), -1);
}

TEST_F(SequencePlanTest, IdsAreUnique) {
  auto a = SequencePlan::Make(*stream_, {});
  auto b = SequencePlan::Make(*stream_, {});
  EXPECT_NE(a->id(), b->id());
}

struct BadCase {
  SequenceSpec spec;
  Code code;
  const char* says;
};

TEST_F(SequencePlanTest, ErrorsSayWhatIsWrongAndLeaveThePlanAlone) {
  auto plan = SequencePlan::Create(*stream_, {.max_tokens = 10, .max_sequences = 3, .max_length = 6});
  ASSERT_TRUE(plan.ok());
  ASSERT_TRUE(plan->Refill(*stream_, {.lengths = {4, 5}, .read_slots = {7, 8}, .write_slots = {7, 8}}).ok());
  const BadCase cases[] = {
      {{{1, -1}, {}, {}}, Code::kInvalidArgument, "sequence 1 has negative length -1"},
      {{{1, 1, 1, 1}, {}, {}}, Code::kResource, "4 sequences, but its capacity is 3"},
      {{{5, 6}, {}, {}}, Code::kResource, "11 tokens, longest 6, but its capacity is 10 tokens, longest 6"},
      {{{7}, {}, {}}, Code::kResource, "7 tokens, longest 7, but its capacity is 10 tokens, longest 6"},
      {{{1, 1}, {1}, {}}, Code::kInvalidArgument, "1 slots for 2 sequences"},
      {{{1, 1}, {}, {1, 2, 3}}, Code::kInvalidArgument, "3 slots for 2 sequences"},
      {{{1, 1}, {0, 1}, {5, 5}}, Code::kInvalidArgument, "write slot 5 is given to sequences 0 and 1"},
      {{{1, 1}, {0, 6}, {6, 1}}, Code::kInvalidArgument, "slot 6 is read by sequence 1 while sequence 0 writes it"},
      {{{std::numeric_limits<int64_t>::max(), 1}, {}, {}}, Code::kInvalidArgument, "more than"},
  };
  for (const BadCase& c : cases) {
    const Status s = plan->Refill(*stream_, c.spec);
    EXPECT_EQ(s.code(), c.code) << c.says;
    EXPECT_NE(s.message().find(c.says), std::string::npos) << s.message();
    EXPECT_EQ(plan->generation(), 1u);
    EXPECT_EQ(V(plan->offsets()), (std::vector<int64_t>{0, 4, 9}));
    EXPECT_EQ(plan->device_offsets()[2], 9);
    EXPECT_EQ(plan->max_slot(), 8);
  }
}

TEST_F(SequencePlanTest, SlotsMayBeSharedForReadingAndNegativeSlotsNeverClash) {
  EXPECT_TRUE(SequencePlan::Make(*stream_, {.lengths = {1, 1}, .read_slots = {5, 5}, .write_slots = {6, 7}}).ok())
      << "two sequences may start from one state";
  EXPECT_TRUE(SequencePlan::Make(*stream_, {.lengths = {1, 1}, .read_slots = {-1, -1}, .write_slots = {-1, -1}}).ok());
  EXPECT_TRUE(SequencePlan::Make(*stream_, {.lengths = {1, 1}, .read_slots = {5, 6}, .write_slots = {5, 6}}).ok());
}

TEST_F(SequencePlanTest, LengthsThatOverflowASumAreRefused) {
  SequenceSpec spec;
  spec.lengths.assign(16, int64_t{1} << 60);
  EXPECT_EQ(SequencePlan::Make(*stream_, spec).status().code(), Code::kInvalidArgument);
  spec.lengths.assign(3, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(SequencePlan::Make(*stream_, spec).status().code(), Code::kInvalidArgument);
}

TEST_F(SequencePlanTest, NegativeBoundsAreRefused) {
  EXPECT_FALSE(SequencePlan::Create(*stream_, {.max_tokens = -1, .max_sequences = 1, .max_length = 0}).ok());
  EXPECT_FALSE(SequencePlan::Create(*stream_, {.max_tokens = 1, .max_sequences = -1, .max_length = 0}).ok());
  EXPECT_FALSE(SequencePlan::Create(*stream_, {.max_tokens = 1, .max_sequences = 1, .max_length = -1}).ok());
}

/// A stream that claims to be in the middle of a capture.
class CapturingStream : public Stream {
 public:
  const DeviceInfo& device() const override { return info_; }
  Status Synchronize() override { return Status::Ok(); }
  ThreadPool& pool() override { return pool_; }
  bool capturing() const override { return true; }

 private:
  DeviceInfo info_;
  ThreadPool pool_{1};
};

TEST_F(SequencePlanTest, RefillDuringCaptureIsRefused) {
  auto plan = SequencePlan::Make(*stream_, {.lengths = {4}, .read_slots = {}, .write_slots = {}});
  ASSERT_TRUE(plan.ok());
  CapturingStream capturing;
  const Status s = plan->Refill(capturing, {.lengths = {2}, .read_slots = {}, .write_slots = {}});
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(plan->tokens(), 4);
}

}  // namespace
}  // namespace fluvial::ops
