// SPDX-License-Identifier: Apache-2.0
// EngineImpl: the loop behind fluvial/engine.h - mail, steps, sampling, ends.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/batch.h"
#include "engine/planner.h"
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

  int64_t TokenLimit(const Request& request) const;
  static Status CheckPromptKeys(const std::vector<PromptKey>& keys, int64_t prompt);
  /// Sizes of pools and workspace within the memory limit, then the memory itself.
  Status Allocate();
  /// Moves what other threads submitted and cancelled into this thread's lists.
  void TakeMail();
  Status RunStep(const Plan& plan);
  // Images (vision.cc).
  Result<models::VisionPlan> PlanVision(const Request& request) const;
  /// Scratch of the vision tower for a picture of ordinary size, for which its backends are chosen. Larger ones grow
  /// the workspace when they come.
  Result<size_t> VisionWorkspace();
  /// The request's own keys, and one for every run of image tokens.
  static std::vector<PromptKey> PromptKeys(const Request& request, const models::VisionPlan& plan);
  /// Features of the pictures that the next `tokens` tokens of a sequence reach.
  Status EncodeVision(Sequence& s, int64_t tokens);
  /// The same for all items of a step; a sequence for which it fails ends and leaves the step.
  void EncodeStep(const Plan& plan);
  /// Gives up the features that no later token needs.
  void DropFeatures(Sequence& s);
  Status EnsureWorkspace(size_t bytes);
  /// Log probabilities of prompt tokens, then the next token of every sequence that is at its end.
  void SampleRows();
  void TakePromptLogprobs();
  /// What a drawn token means for its sequence; true when the sequence has ended.
  bool Accept(Sequence& s, const ops::sampling::Outcome& outcome);
  void Finish(Sequence& s, FinishReason reason, Status status = Status::Ok());
  void AbortNotFinite(Sequence& s);
  /// Gives pages and slots of finished sequences back and reports their completions.
  void DropFinished();
  void CountGauges();

  EngineOptions options_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<models::Model> model_;
  ModelInfo info_;
  std::optional<CachePool> pool_;
  std::optional<Batch> batch_;
  std::optional<ops::sampling::Sampler> sampler_;
  Buffer workspace_;
  std::optional<Planner> planner_;
  std::vector<SequencePtr> live_;  // by arrival; the planner knows which run

  mutable std::mutex mutex_;  // guards what follows
  std::vector<SequencePtr> submitted_;
  std::unordered_set<uint64_t> cancelled_;
  uint64_t next_id_ = 1;
  EngineStats stats_;
};

}  // namespace fluvial::engine
