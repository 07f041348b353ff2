// SPDX-License-Identifier: Apache-2.0
// OutputParser: splits what a model writes into reasoning, content and tool calls, as it arrives. However the text is
// cut into pieces, the joined result is the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tool_call.h"

namespace fluvial::text {

struct OutputFormat {
  ToolFormat tools = ToolFormat::kNone;
  bool reasoning = false;            ///< the model thinks between <think> and </think>
  bool starts_in_reasoning = false;  ///< the prompt ended with <think>, so that the output begins inside
};

/// What a chat template teaches its model to write: looks for the marks of the known formats in its text.
/// `starts_in_reasoning` stays false; see PromptOpensReasoning.
OutputFormat DetectOutputFormat(std::string_view chat_template);

/// True when a rendered prompt ends with <think> (and white space).
bool PromptOpensReasoning(std::string_view prompt);

/// What became certain by one Push. Tool calls come whole, when their closing mark has come.
struct OutputDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;
};

/// Rules:
///   * newlines next to the marks belong to the markup and are dropped: around reasoning, at the beginning of what
///     follows it, and between content and a tool call;
///   * <think> counts only before anything else was written;
///   * a call inside reasoning ends the reasoning when it can be read; otherwise it is part of the thought;
///   * with kNone tool marks are plain content;
///   * a call that cannot be read, or that does not end, comes out as content, marks included: nothing is lost.
/// The text must hold the marks, so decode with skip_special_tokens = false when they are special tokens, or check
/// that they are not (Qwen, GLM and Kimi mark them as not special).
class OutputParser {
 public:
  explicit OutputParser(const OutputFormat& format, ToolSchemas schemas = {});

  /// `text`: whole characters, as StreamDecoder yields them.
  OutputDelta Push(std::string_view text);
  OutputDelta Finish();

 private:
  enum class State : uint8_t { kStart, kReasoning, kContent, kSection, kCall };

  void Drain(bool finish, OutputDelta* out);
  bool Step(bool finish, OutputDelta* out);
  void EmitText(std::string_view text, OutputDelta* out);
  void CloseCall(std::string_view body, OutputDelta* out);
  bool EndReasoning(size_t drop);
  bool StepCallInReasoning(bool finish, OutputDelta* out);
  std::string_view OpenMark() const;
  std::string_view CloseMark() const;

  OutputFormat format_;
  ToolSchemas schemas_;
  State state_;
  std::string buffer_;    // not yet interpreted
  size_t searched_ = 0;   // of the buffer, in vain, for a call's closing mark
  std::string newlines_;  // withheld: dropped when a mark follows
  bool at_edge_ = true;   // newlines at the beginning of this part are dropped
};

}  // namespace fluvial::text
