// SPDX-License-Identifier: Apache-2.0
#include "measure/gsm8k.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "measure/statistics.h"

namespace fluvial::measure {
namespace {

using Json = nlohmann::ordered_json;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string WithoutCommas(std::string_view text) {
  std::string out(text);
  std::erase(out, ',');
  return out;
}

std::string Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

/// Behind the last "####", to the end of its line.
std::string Marked(std::string_view text) {
  const size_t mark = text.rfind("####");
  if (mark == std::string_view::npos) return "";
  const std::string_view rest = text.substr(mark + 4);
  return WithoutCommas(Trim(rest.substr(0, rest.find('\n', rest.find_first_not_of(" \t")))));
}

}  // namespace

std::vector<std::string> EvalStops() { return {"Question", "Assistant:", "<|separator|>"}; }

std::string LastNumber(std::string_view text) {
  const std::string plain = WithoutCommas(text);
  size_t end = plain.size();
  while (end > 0 && !IsDigit(plain[end - 1])) --end;
  size_t begin = end;
  while (begin > 0 && IsDigit(plain[begin - 1])) --begin;
  while (begin + 1 < end && plain[begin] == '0') ++begin;
  return plain.substr(begin, end - begin);
}

std::string AnswerValue(std::string_view text, std::string_view expected) {
  return LastNumber(expected).empty() ? Marked(text) : LastNumber(text);
}

Result<std::vector<EvalItem>> ReadEvalItems(const std::string& path, int64_t limit) {
  FLUVIAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::istringstream lines(text);
  std::vector<EvalItem> items;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (limit > 0 && static_cast<int64_t>(items.size()) == limit) break;
    const auto bad = [&](const std::string& why) {
      return Status::UnusableModel("'" + path + "' line " + std::to_string(number) + " " + why);
    };
    const Json j = Json::parse(line, nullptr, false);
    const auto is_text = [&](const char* key) { return j.is_object() && j.contains(key) && j[key].is_string(); };
    if (!is_text("question") || !is_text("answer")) return bad(R"(is not {"question": TEXT, "answer": TEXT})");
    EvalItem item;
    item.question = j["question"].get<std::string>();
    item.answer = j["answer"].get<std::string>();
    item.value = Marked(item.answer);
    if (item.value.empty()) return bad("has an answer that does not end in '#### VALUE'");
    if (j.contains("images") && j["images"].is_array()) {
      const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
      for (const Json& image : j["images"]) {
        if (!image.is_string()) return bad("has an image that is not a path");
        const auto name = image.get<std::string>();
        const auto above = folder.parent_path() / name;
        FLUVIAL_ASSIGN_OR_RETURN(std::string url,
                                 ImageUrl(std::filesystem::exists(above) ? above.string() : (folder / name).string()));
        item.images.push_back(std::move(url));
      }
    }
    items.push_back(std::move(item));
  }
  if (items.empty()) return Status::UnusableModel("'" + path + "' has no questions");
  return items;
}

std::vector<BenchPrompt> EvalPrompts(const std::vector<EvalItem>& items, const std::vector<EvalItem>& shots, bool chat,
                                     int64_t max_tokens) {
  std::string before;
  if (!chat) {
    for (const EvalItem& s : shots) before += "Question: " + s.question + "\nAnswer: " + s.answer + "\n\n";
  }
  std::vector<BenchPrompt> prompts;
  for (const EvalItem& item : items) {
    BenchPrompt p;
    p.text = chat ? item.question : before + "Question: " + item.question + "\nAnswer:";
    p.images = item.images;
    p.max_tokens = max_tokens;
    prompts.push_back(std::move(p));
  }
  return prompts;
}

EvalResult ScoreEval(const std::vector<EvalItem>& items, const LoadResult& load) {
  EvalResult result;
  int64_t right = 0, invalid = 0, failed = 0, output = 0;
  Json list = Json::array();
  for (size_t i = 0; i < items.size(); ++i) {
    const RequestRecord& r = load.records[i];
    const std::string value = r.ok ? AnswerValue(r.text, items[i].value) : "";
    const std::string number = LastNumber(items[i].value);
    const std::string expected = number.empty() ? items[i].value : number;
    const bool is_right = !value.empty() && value == expected;
    result.right.push_back(is_right);
    right += is_right;
    invalid += value.empty();
    failed += !r.ok;
    output += r.output_tokens;
    list.push_back(Json{{"index", i},
                        {"question", items[i].question},
                        {"expected", expected},
                        {"value", value},
                        {"right", is_right},
                        {"text", r.text},
                        {"output_tokens", r.output_tokens},
                        {"latency", r.latency},
                        {"error", r.error}});
  }
  const auto n = static_cast<double>(items.size());
  const Interval interval = WilsonInterval(right, static_cast<int64_t>(items.size()));
  const double seconds = std::max(load.duration, 1e-9);
  result.json = Json{{"accuracy", static_cast<double>(right) / n},
                     {"accuracy_interval", {interval.low, interval.high}},
                     {"invalid_rate", static_cast<double>(invalid) / n},
                     {"failed", failed},
                     {"num_questions", items.size()},
                     {"correct", right},
                     {"latency", load.duration},
                     {"questions_per_second", n / seconds},
                     {"total_output_tokens", output},
                     {"tokens_per_second", static_cast<double>(output) / seconds},
                     {"items", std::move(list)}};
  return result;
}

}  // namespace fluvial::measure
