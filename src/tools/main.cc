// SPDX-License-Identifier: Apache-2.0
// The program `fluvial`: picks the subcommand. Everything else is in the subcommands' files.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "fluvial/version.h"
#include "tools/command.h"

namespace fluvial::tools {
namespace {

constexpr const char* kDescription =
    "Fluvial runs hybrid linear-attention language models (Gated DeltaNet, Kimi Delta Attention) from Hugging Face\n"
    "checkpoints. Every attention operator has several backends that you can name, compare and have explained.";

constexpr const char* kExamples =
    "Examples:\n"
    "  fluvial run ./Qwen3.5-0.8B --prompt \"A river is\"   generate text, streaming\n"
    "  fluvial backends                                  every operator, its backends, and which can run here\n"
    "  fluvial verify                                    backends against the fp64 reference\n"
    "  fluvial bench op --suite cpu                      kernels against the floor of this machine\n"
    "  fluvial bench serve --num-prompts 100             load on a server: TTFT, TPOT, throughput\n"
    "  fluvial eval gsm8k MODEL_OR_URL --data F.jsonl    exact match, with its interval\n"
    "  fluvial compare --a ARGS --b ARGS                 two configurations, with a verdict\n"
    "  fluvial explain ./Qwen3.5-0.8B                    what auto would choose for a model, and why\n"
    "  fluvial inspect ./Qwen3.5-0.8B                    what a checkpoint is\n"
    "  fluvial tokenize ./Qwen3.5-0.8B --prompt hello    token ids\n"
    "\n"
    "Every option may also come from the variable FLUVIAL_<OPTION> (--max-tokens: FLUVIAL_MAX_TOKENS) or from a file\n"
    "given by --config FILE with lines like  max-tokens = 64 ; the command line wins, then the variable.\n"
    "Exit status: 0 done, 1 failed while running, 2 usage, 3 a model or file is not usable, 4 a backend refused.";

int Main(int argc, char** argv) {
  CLI::App root{kDescription, "fluvial"};
  root.formatter(std::make_shared<HelpFormatter>());
  root.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  root.set_version_flag("--version", "fluvial " + Version(), "Print the version and exit");
  root.set_help_flag("-h,--help", "Print this help, or that of a command, and exit");
  root.footer(kExamples);
  root.require_subcommand(0, 1);

  const std::vector<Command> commands = {AddRun(root),      AddServe(root),  AddInspect(root), AddTokenize(root),
                                         AddBackends(root), AddVerify(root), AddBench(root),   AddExplain(root),
                                         AddEval(root),     AddCompare(root)};
  for (const Command& c : commands) {
    // Only for the help text: ExpandConfig takes --config out before parsing.
    c.app->add_option("--config", "File with options of this command, one `key = value` a line")->type_name("FILE");
    ReadEnvironment(*c.app);
    for (CLI::App* sub : c.app->get_subcommands([](CLI::App*) { return true; })) ReadEnvironment(*sub);
  }

  const std::vector<std::string> given(argv + 1, argv + argc);
  std::string names;
  bool known = given.empty() || given.front().rfind('-', 0) == 0;
  for (const Command& c : commands) {
    names += (names.empty() ? "" : ", ") + c.app->get_name();
    known = known || c.app->get_name() == given.front();
  }
  if (!known) {
    return Fail(Status::InvalidArgument("there is no command '" + given.front() + "'; commands: " + names));
  }
  Result<std::vector<std::string>> arguments = ExpandConfig(given, commands);
  if (!arguments.ok()) return Fail(arguments.status());
  try {
    // CLI11 takes a vector from its back.
    root.parse(std::vector<std::string>(arguments->rbegin(), arguments->rend()));
  } catch (const CLI::Success& e) {  // --help, --version
    root.exit(e);
    return Finish();
  } catch (const CLI::ParseError& e) {
    const auto sub = root.get_subcommands();
    const std::string help = " (see: fluvial" + (sub.empty() ? "" : " " + sub.front()->get_name()) + " --help)";
    std::string what = e.what();
    const std::string bad_value = "Could not convert: ";  // "Could not convert: --max-tokens = ten"
    if (what.rfind(bad_value, 0) == 0) what = what.substr(bad_value.size()) + " is not a value of this option";
    return Fail(Status::InvalidArgument(what + help));
  }
  for (const Command& c : commands) {
    if (c.app->parsed()) return c.run();
  }
  std::fputs(root.help().c_str(), stderr);
  return kUsage;
}

}  // namespace
}  // namespace fluvial::tools

int main(int argc, char** argv) {
  try {
    return fluvial::tools::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("fluvial: out of memory\n", stderr);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fluvial: bug: unexpected exception: %s\n", e.what());
  }
  return fluvial::tools::kFailed;
}
