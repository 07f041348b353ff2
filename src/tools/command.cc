// SPDX-License-Identifier: Apache-2.0
#include "tools/command.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/log.h"

namespace fluvial::tools {
namespace {

bool output_lost = false;

const Command* FindCommand(std::span<const std::string> arguments, std::span<const Command> commands) {
  for (const std::string& a : arguments) {
    for (const Command& c : commands) {
      if (c.app->get_name() == a) return &c;
    }
  }
  return nullptr;
}

/// The subcommand of a command (bench serve) that the arguments name; else the command itself.
const CLI::App* FindApp(std::span<const std::string> arguments, const CLI::App* app) {
  for (const std::string& a : arguments) {
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) {
      if (sub->get_name() == a) return sub;
    }
  }
  return app;
}

/// Value of --config on the command line, else of FLUVIAL_CONFIG; removes it from `arguments`.
Result<std::string> TakeConfigPath(std::vector<std::string>& arguments) {
  std::string path;
  for (size_t i = 0; i < arguments.size();) {
    if (arguments[i] == "--") break;
    if (arguments[i] == "--config") {
      if (i + 1 == arguments.size()) return Status::InvalidArgument("--config needs the name of a file");
      path = arguments[i + 1];
      arguments.erase(arguments.begin() + i, arguments.begin() + i + 2);
    } else if (arguments[i].rfind("--config=", 0) == 0) {
      path = arguments[i].substr(9);
      arguments.erase(arguments.begin() + i);
    } else {
      ++i;
    }
  }
  if (path.empty()) {
    const char* value = std::getenv("FLUVIAL_CONFIG");
    if (value != nullptr) path = value;
  }
  return path;
}

bool Given(const CLI::Option& option, std::span<const std::string> arguments) {
  if (!option.get_envname().empty() && std::getenv(option.get_envname().c_str()) != nullptr) return true;
  for (const std::string& a : arguments) {
    if (a == "--") break;
    for (const std::string& name : option.get_lnames()) {
      if (a == "--" + name || a.rfind("--" + name + "=", 0) == 0) return true;
    }
    for (const std::string& name : option.get_snames()) {
      if (a.rfind("-" + name, 0) == 0) return true;
    }
  }
  return false;
}

}  // namespace

int ExitStatus(Code code) {
  switch (code) {
    case Code::kOk:
      return kDone;
    case Code::kInvalidArgument:
      return kUsage;
    case Code::kUnusableModel:
      return kUnusable;
    case Code::kRefused:
      return kRefused;
    case Code::kResource:
    case Code::kCancelled:
    case Code::kFailed:
      return kFailed;
  }
  return kFailed;
}

int Fail(const Status& status) {
  std::fflush(stdout);  // what was already answered stands before the reason why it ends
  std::fprintf(stderr, "fluvial: %s\n", status.message().c_str());
  return ExitStatus(status.code());
}

bool Print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) output_lost = true;
  return !output_lost;
}

int Finish() {
  if (std::fflush(stdout) == 0 && !output_lost) return kDone;
  return Fail(Status::Failed("writing to the standard output failed: is the disk full?"));
}

std::string EnvironmentName(const std::string& option) {
  std::string name = "FLUVIAL_";
  for (char c : option.substr(option.find_first_not_of('-'))) {
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return name;
}

void ReadEnvironment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option == app.get_help_ptr()) continue;
    option->envname(EnvironmentName(option->get_lnames().front()));
  }
}

Result<std::vector<std::string>> ExpandConfig(std::span<const std::string> arguments,
                                              std::span<const Command> commands) {
  std::vector<std::string> rest(arguments.begin(), arguments.end());
  FLUVIAL_ASSIGN_OR_RETURN(const std::string path, TakeConfigPath(rest));
  if (path.empty()) return rest;
  const Command* command = FindCommand(rest, commands);
  if (command == nullptr) return rest;  // the parser says what is missing
  std::ifstream in(path);
  if (!in) return Status::UnusableModel("--config: '" + path + "' cannot be read");
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(in);
  } catch (const std::exception& e) {
    return Status::UnusableModel("--config: '" + path + "': " + e.what());
  }
  const std::string& name = command->app->get_name();
  const CLI::App* app = FindApp(rest, command->app);
  std::vector<std::string> from_file;
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of a section's begin and end
    if (!item.parents.empty() && item.parents != std::vector<std::string>{name}) {
      const bool known = std::any_of(commands.begin(), commands.end(), [&](const Command& c) {
        return item.parents.size() == 1 && c.app->get_name() == item.parents.front();
      });
      if (known) continue;
      return Status::InvalidArgument("--config: '" + path + "': there is no command for section [" +
                                     item.parents.front() + "]");
    }
    const CLI::Option* option = app->get_option_no_throw("--" + item.name);
    if (option == nullptr || option == app->get_help_ptr()) {
      return Status::InvalidArgument("--config: '" + path + "': fluvial " + name + " has no option '" + item.name +
                                     "'; see fluvial " + name + " --help");
    }
    if (Given(*option, rest)) continue;
    if (option->get_expected_min() == 0) {  // a flag
      if (item.inputs.size() == 1 && item.inputs.front() == "true") {
        from_file.push_back("--" + item.name);
      } else if (item.inputs.size() != 1 || item.inputs.front() != "false") {
        return Status::InvalidArgument("--config: '" + path + "': " + item.name + " is true or false");
      }
      continue;
    }
    for (const std::string& value : item.inputs) from_file.push_back("--" + item.name + "=" + value);
  }
  const auto at = std::find(rest.begin(), rest.end(), app->get_name());
  rest.insert(at + 1, from_file.begin(), from_file.end());
  return rest;
}

Result<std::vector<int32_t>> ParseIds(std::string_view text, std::string_view option) {
  std::vector<int32_t> ids;
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t end = text.find(',', begin);
    if (end == std::string_view::npos) end = text.size();
    std::string_view item = text.substr(begin, end - begin);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(item.data(), item.data() + item.size(), id);
    if (item.empty() || error != std::errc() || stop != item.data() + item.size() || id < 0) {
      return Status::InvalidArgument(std::string(option) + ": '" + std::string(item) +
                                     "' is not a token id: give numbers separated by commas, e.g. 1,2,3");
    }
    ids.push_back(id);
    begin = end + 1;
  }
  return ids;
}

Status LogToStderr(std::string_view level) {
  for (LogLevel l : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (level != LogLevelName(l)) continue;
    SetLogSink(
        [](LogLevel at, std::string_view line) {
          const std::string_view name = LogLevelName(at);
          std::fprintf(stderr, "[%.*s] %.*s\n", static_cast<int>(name.size()), name.data(),
                       static_cast<int>(line.size()), line.data());
        },
        l);
    return Status::Ok();
  }
  return Status::InvalidArgument("--log-level: '" + std::string(level) + "': use debug, info, warning or error");
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  if (!option->get_option_text().empty()) return " " + option->get_option_text();
  std::string out;
  if (option->get_type_size() != 0) {
    if (!option->get_type_name().empty()) out += " " + get_label(option->get_type_name());
    if (!option->get_default_str().empty()) out += "=" + option->get_default_str();
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) out += " ...";
  }
  return out;
}

}  // namespace fluvial::tools
