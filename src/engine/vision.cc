// SPDX-License-Identifier: Apache-2.0
// Images of requests: checked at Submit, encoded when a step reaches their tokens, given up behind them.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"
#include "vision/processor.h"

namespace fluvial::engine {
namespace {

/// Patches that go through the tower at once, unless one picture has more.
constexpr int64_t kPatchesAtOnce = 16384;

}  // namespace

Result<models::VisionPlan> EngineImpl::PlanVision(const Request& r) const {
  if (r.vision.empty()) return models::VisionPlan();
  const models::VisionRules* rules = model_->vision();
  if (rules == nullptr) {
    return Status::InvalidArgument("the model " + info_.architecture +
                                   " takes no images and videos: send text only, or load a model with a vision tower");
  }
  return models::PlanVision(*rules, r.prompt, r.vision);
}

Result<size_t> EngineImpl::VisionWorkspace() {
  if (model_->vision() == nullptr) return size_t{0};
  // Shapes are enough: 64 x 64 patches are about 1000 x 1000 pixels.
  VisionInput picture;
  const int64_t side = 64 / model_->vision()->merge * model_->vision()->merge;
  picture.grid = {1, side, side};
  return model_->EncodeBytes({&picture, 1});
}

std::vector<PromptKey> EngineImpl::PromptKeys(const Request& r, const models::VisionPlan& plan) {
  std::vector<PromptKey> keys = r.prompt_keys;
  for (const models::VisionPlan::Run& run : plan.runs) {
    const VisionInput& item = r.vision[run.item];
    VisionInput hashed = item;
    if (hashed.hash == decltype(hashed.hash){}) hashed.hash = vision::ContentHash(item);
    keys.push_back({run.begin, run.begin + run.count, models::CacheKey(hashed, run)});
  }
  std::stable_sort(keys.begin(), keys.end(), [](const PromptKey& a, const PromptKey& b) { return a.begin < b.begin; });
  return keys;
}

Status EngineImpl::EncodeVision(Sequence& s, int64_t tokens) {
  std::vector<size_t> needed;
  for (const models::VisionPlan::Run& run : s.vision.runs) {
    const bool in_step = run.begin < s.done + tokens && run.begin + run.count > s.done;
    if (in_step && s.features[run.item].data() == nullptr && (needed.empty() || needed.back() != run.item)) {
      needed.push_back(run.item);
    }
  }
  const int64_t row_bytes = model_->vision_width() * static_cast<int64_t>(SizeOf(model_->dtype()));
  const int64_t levels = model_->vision_levels();
  for (size_t begin = 0; begin < needed.size();) {
    std::vector<VisionInput> items;
    int64_t patches = 0, rows = 0;
    for (size_t i = begin; i < needed.size(); ++i) {
      const VisionInput& item = s.request.vision[needed[i]];
      if (!items.empty() && patches + item.patches() > kPatchesAtOnce) break;
      items.push_back(item);
      patches += item.patches();
      rows += model_->vision()->Tokens(item);
    }
    FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, model_->EncodeBytes(items));
    FLUVIAL_RETURN_IF_ERROR(EnsureWorkspace(bytes));
    const DeviceInfo& device = stream_->device();
    FLUVIAL_ASSIGN_OR_RETURN(
        const Buffer all, Buffer::Allocate(device.kind, static_cast<size_t>(levels * rows * row_bytes), device.index));
    Arena arena(workspace_.data(), workspace_.bytes());
    FLUVIAL_RETURN_IF_ERROR(model_->Encode(
        *stream_, items, TensorView(all.data(), model_->dtype(), {levels, rows, model_->vision_width()}), arena));
    // Each item keeps its own rows of every level, so that it can be given up alone.
    int64_t row = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      const int64_t n = model_->vision()->Tokens(items[i]);
      Buffer& own = s.features[needed[begin + i]];
      FLUVIAL_ASSIGN_OR_RETURN(
          own, Buffer::Allocate(device.kind, static_cast<size_t>(levels * n * row_bytes), device.index));
      for (int64_t l = 0; l < levels; ++l) {
        FLUVIAL_RETURN_IF_ERROR(Copy(*stream_, static_cast<char*>(own.data()) + l * n * row_bytes, device.kind,
                                     static_cast<const char*>(all.data()) + (l * rows + row) * row_bytes, device.kind,
                                     static_cast<size_t>(n * row_bytes)));
      }
      row += n;
    }
    begin += items.size();
  }
  return Status::Ok();
}

void EngineImpl::EncodeStep(const Plan& plan) {
  std::vector<Sequence*> failed;
  for (const Plan::Item& item : plan.items) {
    auto& s = static_cast<Sequence&>(*item.task);
    const Status status = EncodeVision(s, item.tokens);
    if (status.ok()) continue;
    Finish(s, FinishReason::kError, status);
    failed.push_back(&s);
  }
  // Nothing of the step has run yet: the others go on.
  for (Sequence* s : failed) planner_->Withdraw(*s);
}

void EngineImpl::DropFeatures(Sequence& s) {
  for (size_t item = 0; item < s.features.size(); ++item) {
    const bool wanted = std::any_of(s.vision.runs.begin(), s.vision.runs.end(), [&](const auto& run) {
      return run.item == item && run.begin + run.count > s.done;
    });
    if (!wanted) s.features[item] = Buffer();
  }
}

}  // namespace fluvial::engine
