// SPDX-License-Identifier: Apache-2.0
// fluvial tokenize: rendered text and token ids, or the text of ids.
#include <memory>
#include <nlohmann/json.hpp>

#include "text/tokenizer.h"
#include "tools/command.h"
#include "tools/prompt.h"

namespace fluvial::tools {
namespace {

struct Options {
  std::string model;
  PromptOptions prompt;
  bool skip_special_tokens = false;
  bool json = false;
};

std::string Joined(const std::vector<int32_t>& ids) {
  std::string s;
  for (size_t i = 0; i < ids.size(); ++i) s += (i ? "," : "") + std::to_string(ids[i]);
  return s;
}

Status RunTokenize(const Options& o) {
  FLUVIAL_RETURN_IF_ERROR(CheckPromptOptions(o.prompt, "--ids"));
  FLUVIAL_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::Load(o.model));
  FLUVIAL_ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(o.prompt, o.model, &tokenizer, "--ids"));
  const bool decode = o.prompt.ids.has_value();
  for (int32_t id : prompt.ids) {
    if (static_cast<size_t>(id) < tokenizer.vocab_size()) continue;
    return Status::InvalidArgument("--ids: " + std::to_string(id) + " is not in the vocabulary of " +
                                   std::to_string(tokenizer.vocab_size()) + " tokens");
  }
  if (decode) prompt.text = tokenizer.Decode(prompt.ids, {.skip_special_tokens = o.skip_special_tokens});
  if (o.json) {
    nlohmann::ordered_json root;
    root["text"] = prompt.text;
    root["token_ids"] = prompt.ids;
    root["tokens"] = nlohmann::ordered_json::array();
    for (int32_t id : prompt.ids) root["tokens"].push_back(std::string(tokenizer.TokenBytes(id)));
    Print(root.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  } else if (decode) {
    Print(prompt.text + "\n");
  } else {
    Print(prompt.text + "\n" + Joined(prompt.ids) + "\n");
  }
  return Status::Ok();
}

}  // namespace

Command AddTokenize(CLI::App& root) {
  CLI::App* app = root.add_subcommand("tokenize", "Rendered text and token ids of a prompt, or the text of ids");
  auto o = std::make_shared<Options>();
  app->add_option("model,--model", o->model, "Folder of a Hugging Face checkpoint")->type_name("MODEL")->required();
  AddPromptOptions(*app, o->prompt, "--ids");
  app->add_flag("--skip-special-tokens", o->skip_special_tokens, "Leave special tokens out of the text of --ids");
  app->add_flag("--json", o->json, "One JSON object (docs/cli.md)");
  app->footer(
      "Examples:\n"
      "  fluvial tokenize ./Qwen3.5-0.8B --prompt \"What is a river?\"\n"
      "  fluvial tokenize ./Qwen3.5-0.8B --messages chat.json\n"
      "  fluvial tokenize ./Qwen3.5-0.8B --ids 3710,369,264 --json");
  return {app, [o] {
            const Status s = RunTokenize(*o);
            return s.ok() ? Finish() : Fail(s);
          }};
}

}  // namespace fluvial::tools
