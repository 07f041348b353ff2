// SPDX-License-Identifier: Apache-2.0
#include "server/choice.h"

#include <algorithm>
#include <utility>

namespace fluvial::server {

Choice::Choice(const text::Tokenizer& tokenizer, const OutputOptions& options)
    : options_(options),
      decoder_(tokenizer, {.skip_special_tokens = options.skip_special_tokens}),
      stop_(options.stop) {}

bool Choice::Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Next Choice::Push(const Token& token) {
  ++count_;
  tokens_.push_back(token);
  if (Contains(options_.model_stops, token.id)) return Next::kContinue;  // the engine ends here
  if (Contains(options_.stop_ids, token.id) && !options_.include_stop) return Next::kContinue;
  text_ += stop_.Push(decoder_.Push(token.id));
  return stop_.stopped() ? Next::kStop : Next::kContinue;
}

void Choice::Finish(const Completion& completion) {
  if (!stop_.stopped()) {
    text_ += stop_.Push(decoder_.Finish());
    if (!stop_.stopped()) text_ += stop_.Finish();
  }
  if (stop_.stopped()) {
    stop_reason_ = stop_.found();
    if (options_.include_stop) text_ += stop_.found();
  } else if (completion.stop_id >= 0 && !Contains(options_.model_stops, completion.stop_id)) {
    stop_reason_ = completion.stop_id;
  }
  // The last token may complete a stop string and reach max_tokens at once: the text was cut, so say stop.
  reason_ = stop_.stopped() ? "stop" : std::string(Name(completion.finish_reason));
}

Choice::Delta Choice::Take() { return {std::exchange(text_, {}), std::exchange(tokens_, {})}; }

}  // namespace fluvial::server
