// SPDX-License-Identifier: Apache-2.0
#include "tools/load_flags.h"

#include <CLI/App.hpp>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>

namespace fluvial::tools {

void AddDatasetFlags(CLI::App& app, DatasetFlags& f) {
  const char* group = "Prompts";
  app.add_option("--dataset-name", f.name, "random; custom: lines {\"prompt\": TEXT}; sharegpt: conversations")
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option("--dataset-path", f.path, "File of custom or sharegpt")->type_name("FILE")->group(group);
  app.add_option("--tokenizer", f.tokenizer, "Folder with tokenizer.json; default: the model, when it is a folder")
      ->type_name("FOLDER")
      ->group(group);
  app.add_option("--num-prompts", f.num_prompts, "Requests to send")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--random-input-len,--input-len", f.random.input_len, "Tokens of a random prompt")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--random-output-len,--output-len", f.random.output_len, "Tokens of its answer")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--random-range-ratio", f.random.range_ratio, "Both vary by this part of them, 0..1")
      ->type_name("X")
      ->capture_default_str()
      ->group(group);
  app.add_option("--random-prefix-len", f.random.prefix_len, "Tokens before, the same in all prompts")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--custom-output-len", f.custom_output_len, "Tokens of an answer, where a line does not say")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--sharegpt-output-len", f.sharegpt_output_len, "Tokens of an answer; 0: those of the file's")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", f.seed, "Of prompts and arrivals")->type_name("N")->capture_default_str()->group(group);
}

Result<std::vector<measure::BenchPrompt>> ReadDataset(const DatasetFlags& f, const std::string& model) {
  if (f.num_prompts < 1) return Status::InvalidArgument("--num-prompts must be at least 1");
  if (f.name != "random" && f.name != "custom" && f.name != "sharegpt") {
    return Status::InvalidArgument("--dataset-name: there is no '" + f.name + "'; use random, custom or sharegpt");
  }
  if (f.name != "random" && f.path.empty()) {
    return Status::InvalidArgument("--dataset-name " + f.name + " needs --dataset-path");
  }
  if (f.name == "custom") {
    if (f.custom_output_len < 1) return Status::InvalidArgument("--custom-output-len must be at least 1");
    return measure::CustomPrompts(f.path, f.custom_output_len, f.num_prompts);
  }
  const std::string folder = f.tokenizer.empty() ? model : f.tokenizer;
  if (!std::filesystem::is_directory(folder)) {
    return Status::InvalidArgument("--dataset-name " + f.name + " needs the model's tokenizer: '" + folder +
                                   "' is not a folder, give one with --tokenizer");
  }
  FLUVIAL_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::Load(folder));
  if (f.name == "random") return measure::RandomPrompts(tokenizer, f.random, f.num_prompts, f.seed);
  return measure::ShareGptPrompts(f.path, tokenizer, f.sharegpt_output_len, f.num_prompts, f.seed);
}

Result<double> ParseRate(const std::string& text, const std::string& option) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0)) {
    return Status::InvalidArgument(option + ": '" + text + "' is not a number above 0 or inf");
  }
  return value;
}

Result<std::vector<double>> ParseNumbers(const std::string& text, const std::string& option) {
  std::vector<double> values;
  for (const std::string& item : SplitList(text)) {
    char* end = nullptr;
    values.push_back(std::strtod(item.c_str(), &end));
    if (*end != '\0' || !std::isfinite(values.back())) {
      return Status::InvalidArgument(option + ": '" + item + "' is not a number");
    }
  }
  return values;
}

std::vector<std::string> SplitList(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end > at) out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) return Status::Failed("'" + path + "' cannot be written");
  return Status::Ok();
}

std::string DateStamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &local);
  return text;
}

}  // namespace fluvial::tools
