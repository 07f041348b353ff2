// SPDX-License-Identifier: Apache-2.0
// EngineImpl: the loop behind fluvial/engine.h - admission, steps, sampling, ends.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/batch.h"
#include "engine/pools.h"
#include "engine/sequence.h"
#include "fluvial/engine.h"
#include "models/model.h"
#include "ops/sampling/sampling.h"

namespace fluvial::engine {

class EngineImpl : public Engine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<Stream> stream, std::unique_ptr<models::Model> model);
  ~EngineImpl() override;

  /// Pools, plans, workspace; chooses backends for a full prefill step and a full decode step.
  Status Prepare(std::vector<int32_t> eos);
  void SetLoadSeconds(double seconds) { stats_.load_seconds = seconds; }

  const ModelInfo& info() const override { return info_; }
  EngineStats stats() const override;
  std::vector<BackendUse> backends() const override;
  Status Check(const Request& request) const override;
  Result<std::vector<Completion>> Generate(std::vector<Request> requests, const TokenCallback& on_token,
                                           const std::atomic<bool>* cancel) override;
  Result<uint64_t> Submit(Request request, TokenCallback on_token, DoneCallback on_done) override;
  void Cancel(uint64_t id) override;
  Result<bool> Step() override;

 private:
  using SequencePtr = std::unique_ptr<Sequence>;

  int64_t PagesFor(int64_t tokens) const;
  int64_t TokenLimit(const Request& request) const;
  /// Moves what other threads submitted and cancelled into this thread's lists.
  void TakeMail();
  void Admit();
  Status RunStep();
  // Images (vision.cc).
  Result<models::VisionPlan> PlanVision(const Request& request) const;
  /// Features of the pictures that the next `tokens` tokens of a sequence reach.
  Status EncodeVision(Sequence& s, int64_t tokens);
  /// The same for the batch; false when a sequence failed and has been finished.
  bool EncodeStep();
  /// Gives up the features that no later token needs.
  void DropFeatures(Sequence& s);
  Status EnsureWorkspace(size_t bytes);
  void SampleRows();
  /// What a drawn token means for its sequence; true when the sequence has ended.
  bool Accept(Sequence& s, const ops::sampling::Outcome& outcome);
  void Finish(Sequence& s, FinishReason reason, Status status = Status::Ok());
  /// Gives pages and slot back and reports the completion.
  void Release(Sequence& s);
  void DropFinished();

  EngineOptions options_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<models::Model> model_;
  ModelInfo info_;
  std::optional<CachePool> pool_;
  std::optional<Batch> batch_;
  std::optional<ops::sampling::Sampler> sampler_;
  Buffer workspace_;
  std::vector<SequencePtr> running_;
  std::deque<SequencePtr> waiting_;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<SequencePtr> submitted_;
  std::unordered_set<uint64_t> cancelled_;
  uint64_t next_id_ = 1;
  EngineStats stats_;
};

}  // namespace fluvial::engine
