// SPDX-License-Identifier: Apache-2.0
#include "tools/prompt.h"

#include "tools/command.h"

namespace fluvial::tools {

void AddPromptOptions(CLI::App& app, PromptOptions& o, const std::string& ids_option) {
  app.add_option("--prompt", o.prompt, "Plain text, taken as it is")->type_name("TEXT");
  app.add_option(ids_option, o.ids, "Token ids, separated by commas")->type_name("IDS");
}

Status CheckPromptOptions(const PromptOptions& o, const std::string& ids_option) {
  const int given = o.prompt.has_value() + o.ids.has_value();
  if (given == 1) return Status::Ok();
  return Status::InvalidArgument((given == 0 ? "there is no prompt: give --prompt TEXT or "
                                             : "there are several prompts: give one of --prompt TEXT and ") +
                                 ids_option + " IDS");
}

Result<Prompt> ReadPrompt(const PromptOptions& o, const std::string&, const text::Tokenizer* tokenizer,
                          const std::string& ids_option) {
  Prompt out;
  if (o.ids.has_value()) {
    FLUVIAL_ASSIGN_OR_RETURN(out.ids, ParseIds(*o.ids, ids_option));
    return out;
  }
  out.text = *o.prompt;
  FLUVIAL_ASSIGN_OR_RETURN(out.ids, tokenizer->Encode(out.text));
  return out;
}

}  // namespace fluvial::tools
