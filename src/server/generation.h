// SPDX-License-Identifier: Apache-2.0
// Generation: one generating request from submission to its last byte - n choices for each prompt, streamed or whole.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/choice.h"
#include "server/engine_loop.h"
#include "server/generation_request.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/voice.h"

namespace fluvial::server {

/// What an endpoint has made of a request.
struct GenerationPlan {
  GenerationRequest request;
  std::vector<Request> prompts;         ///< ready for the engine but for the seed; n choices each
  std::vector<std::string> image_urls;  ///< to be loaded before the start
  /// What is left to do once the images are there, if anything: adds the prompts.
  std::function<std::optional<ApiError>(const std::vector<std::string>& images, GenerationPlan* plan)> complete;
  std::string id;              ///< "cmpl-...", "chatcmpl-..."
  std::string object;          ///< "text_completion", "chat.completion"
  std::string chunk_object;    ///< of stream chunks
  int64_t dropped_tokens = 0;  ///< drawn tokens at the end of each choice that the client did not ask for: 0 or 1
  /// Words choice `index` of all, which answers prompt index / n.
  std::function<std::unique_ptr<Voice>(int64_t index)> voice;
};

/// Kept alive by the engine's callbacks and by the exchange until the last choice has ended.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  using Clock = std::chrono::steady_clock;

  /// Danger: what the references name must outlive the engine loop.
  Generation(EngineLoop& loop, Metrics& metrics, const ServedModel& model, GenerationPlan plan,
             std::shared_ptr<Exchange> exchange, Clock::time_point arrival, Clock::time_point deadline);

  /// Checks every prompt, then submits all or answers with an error.
  void Start();

 private:
  struct Item {
    std::unique_ptr<Choice> choice;
    std::unique_ptr<Voice> voice;
    uint64_t id = 0;
    int64_t cached_tokens = 0;
    Clock::time_point last;
    bool ended = false;
  };

  Next OnToken(size_t index, const Token& token);
  void OnDone(size_t index, const Completion& completion);
  /// On the network thread, which must not wait for this object's lock.
  void OnLost();
  // Below: with mutex_ held.
  Status Submit(size_t index, Request request);
  void CountEnd(const Completion& completion);
  void WriteChunks(Item* item);
  void Complete();
  void Fail(const ApiError& error);
  void EndLost();
  void CancelAll();
  Json Envelope(const std::string& object) const;
  Json Usage() const;

  EngineLoop& loop_;
  Metrics& metrics_;
  const ServedModel& model_;
  const GenerationPlan plan_;
  const std::shared_ptr<Exchange> exchange_;
  const Clock::time_point arrival_, deadline_;
  const int64_t created_;
  std::atomic<bool> lost_{false};  // the client has gone; EndLost is on its way

  std::mutex mutex_;  // guards what follows; taken before the loop's own
  std::vector<Item> items_;
  size_t left_ = 0;
  int64_t prompt_tokens_ = 0;
  bool streaming_ = false;  // the head of the stream is out
  bool over_ = false;       // the client has its answer, an error, or has gone
};

}  // namespace fluvial::server
