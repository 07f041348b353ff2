// SPDX-License-Identifier: Apache-2.0
// Jinja templates as Hugging Face chat templates use them: the language of jinja2 3.1 in an immutable sandbox with
// trim_blocks, lstrip_blocks, loop controls, a transparent `generation` block, `tojson` = json.dumps without ASCII
// escapes, `raise_exception` and `strftime_now`. README.md lists what is left out; using that is an error with line and
// column, never other text.
//
// Templates come from model files, so they are not trusted: a rendering has bounds on steps, memory, output and depth,
// and can reach nothing but its variables. No exception leaves this surface.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "fluvial/status.h"

namespace fluvial::jinja {

struct Program;

struct RenderOptions {
  /// Work units: one per node of the tree walked, one per 16 bytes or 2 items an operation touches. The default is a
  /// few seconds in the worst case and far above what a conversation of megabytes needs.
  int64_t max_steps = 50'000'000;
  /// Bytes of strings and lists made, all together.
  int64_t max_bytes = int64_t{1} << 30;
  int64_t max_output_bytes = int64_t{64} << 20;
  /// Macros, loops and expressions active inside each other; a template expression takes several. The default needs
  /// less than 2 MiB of stack.
  int max_recursion = 2000;
  /// Time that strftime_now formats; empty: the local time of day.
  std::function<std::tm()> now;
};

class Template {
 public:
  /// Parses `source`. Errors (kUnusableModel) name line and column.
  static Result<Template> Parse(std::string_view source);

  /// Renders with `variables`, a JSON object of names; key order is kept. Safe to call from several threads.
  /// Errors: kInvalidArgument when the template fails on these variables (raise_exception included), kUnusableModel
  /// when it needs something this engine does not support, kResource when a bound is hit.
  Result<std::string> Render(const nlohmann::ordered_json& variables, const RenderOptions& options = {}) const;

 private:
  std::shared_ptr<const Program> program_;
};

/// Parse and Render in one call.
Result<std::string> Render(std::string_view source, const nlohmann::ordered_json& variables,
                           const RenderOptions& options = {});

}  // namespace fluvial::jinja
