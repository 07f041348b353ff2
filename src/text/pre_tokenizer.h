// SPDX-License-Identifier: Apache-2.0
// PreTokenizer: cuts normalised text into the pieces that BPE works on. A chain of stages, each cutting the pieces
// of the one before (tokenizer.json: pre_tokenizer).
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "fluvial/status.h"
#include "text/regex.h"

namespace fluvial::text {

class PreTokenizer {
 public:
  /// What becomes of a match and of the text between matches.
  struct Stage {
    Regex regex;
    bool keep_matches = true;
    bool keep_gaps = true;
  };

  void Append(Stage stage) { stages_.push_back(std::move(stage)); }
  size_t size() const { return stages_.size(); }

  /// Calls `sink(piece)` for every piece of `text` (valid UTF-8), in order; pieces are not empty.
  template <class Sink>
  Status Run(std::string_view text, Regex::Scratch* scratch, const Sink& sink) const {
    return RunFrom(0, text, scratch, sink);
  }

 private:
  template <class Sink>
  Status RunFrom(size_t stage_index, std::string_view text, Regex::Scratch* scratch, const Sink& sink) const {
    if (text.empty()) return Status::Ok();
    if (stage_index == stages_.size()) {
      sink(text);
      return Status::Ok();
    }
    const Stage& stage = stages_[stage_index];
    const bool last = stage_index + 1 == stages_.size();
    const auto emit = [&](size_t begin, size_t end) {
      if (begin == end) return Status::Ok();
      if (!last) return RunFrom(stage_index + 1, text.substr(begin, end - begin), scratch, sink);
      sink(text.substr(begin, end - begin));
      return Status::Ok();
    };
    std::array<Span, 64> spans;
    size_t offset = 0, done = 0, found = 0;
    do {
      FLUVIAL_ASSIGN_OR_RETURN(found, stage.regex.Next(text, &offset, spans, scratch));
      for (size_t i = 0; i < found; ++i) {
        if (stage.keep_gaps) FLUVIAL_RETURN_IF_ERROR(emit(done, spans[i].begin));
        if (stage.keep_matches) FLUVIAL_RETURN_IF_ERROR(emit(spans[i].begin, spans[i].end));
        done = spans[i].end;
      }
    } while (found == spans.size());
    return stage.keep_gaps ? emit(done, text.size()) : Status::Ok();
  }

  std::vector<Stage> stages_;
};

}  // namespace fluvial::text
