// SPDX-License-Identifier: Apache-2.0
// What the subcommands share: exit statuses, the error line, the log on stderr, and the three places an option
// may come from. CLI11 is seen in this room only.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fluvial/status.h"

namespace fluvial::tools {

/// Exit statuses of the program (docs/cli.md).
enum Exit : int { kDone = 0, kFailed = 1, kUsage = 2, kUnusable = 3, kRefused = 4, kInterrupted = 130 };

int ExitStatus(Code code);

/// Writes "fluvial: <message>" to stderr and gives the exit status of the code.
int Fail(const Status& status);

/// Writes `text` to stdout at once. False when stdout cannot take it (disk full, reader gone).
bool Print(std::string_view text);

/// kDone, or kFailed with a message when something written to stdout was lost.
int Finish();

/// One subcommand: its options, and what to do once they are parsed. `run` gives the exit status.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

Command AddBackends(CLI::App& root);
Command AddBench(CLI::App& root);
Command AddBenchOp(CLI::App& bench);
Command AddBenchServe(CLI::App& bench);
Command AddBenchLatency(CLI::App& bench);
Command AddBenchThroughput(CLI::App& bench);
Command AddCompare(CLI::App& root);
Command AddEval(CLI::App& root);
Command AddExplain(CLI::App& root);
Command AddRun(CLI::App& root);
Command AddServe(CLI::App& root);
Command AddInspect(CLI::App& root);
Command AddTokenize(CLI::App& root);
Command AddVerify(CLI::App& root);

/// "--max-tokens" -> "FLUVIAL_MAX_TOKENS".
std::string EnvironmentName(const std::string& option);

/// Every option of `app` with a long name also reads its FLUVIAL_ variable; --help and --config do not.
void ReadEnvironment(CLI::App& app);

/// Arguments after the program name, with the file named by --config (or FLUVIAL_CONFIG) turned into options.
/// Lines are `key = value`; a [section] belongs to the subcommand of that name, lines before any section to
/// whichever runs. What the command line or the environment says wins over the file. An unknown key is
/// kInvalidArgument, a missing or broken file kUnusableModel.
Result<std::vector<std::string>> ExpandConfig(std::span<const std::string> arguments,
                                              std::span<const Command> commands);

/// "1,2,3" (blanks allowed) -> ids; kInvalidArgument naming `option` for anything else.
Result<std::vector<int32_t>> ParseIds(std::string_view text, std::string_view option);

/// Lines of the library at or above `level` (debug, info, warning, error) go to stderr.
Status LogToStderr(std::string_view level);

/// Help in the order: usage, description, options (with type and default, without the names of variables).
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(36); }
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace fluvial::tools
