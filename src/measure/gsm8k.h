// SPDX-License-Identifier: Apache-2.0
// Exact-match evaluation of questions with a final value, as GSM8K is used for serving engines.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "measure/load.h"

namespace fluvial::measure {

struct EvalItem {
  std::string question, answer;     ///< the answer ends in "#### VALUE"
  std::string value;                ///< behind the last "####", commas removed
  std::vector<std::string> images;  ///< data: URLs
};

/// Lines {"question", "answer", "images"}; images are paths relative to the folder above the file's (the model's
/// folder, for the bundled sets) or to the file's own. `limit` > 0: the first so many.
Result<std::vector<EvalItem>> ReadEvalItems(const std::string& path, int64_t limit);

/// What is sent for each item: with a chat target the question as the user's message; else "Question: ...\nAnswer: ..."
/// of the shots and the question.
std::vector<BenchPrompt> EvalPrompts(const std::vector<EvalItem>& items, const std::vector<EvalItem>& shots, bool chat,
                                     int64_t max_tokens);

/// The last run of digits of `text` after commas are removed, without leading zeros (no sign, no decimals: the method
/// of vLLM's GSM8K test); empty when there is none.
std::string LastNumber(std::string_view text);

/// The value of an answer: LastNumber when `expected` has digits, else what is behind the last "####", trimmed. Empty:
/// invalid.
std::string AnswerValue(std::string_view text, std::string_view expected);

struct EvalResult {
  std::vector<bool> right;
  nlohmann::ordered_json json;  ///< accuracy, interval, invalid_rate, ..., items
};

/// Failed requests count as wrong and invalid.
EvalResult ScoreEval(const std::vector<EvalItem>& items, const LoadResult& load);

/// Stop strings of completions without a chat template.
std::vector<std::string> EvalStops();

}  // namespace fluvial::measure
