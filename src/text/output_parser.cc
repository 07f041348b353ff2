// SPDX-License-Identifier: Apache-2.0
#include "text/output_parser.h"

#include <algorithm>
#include <array>
#include <span>

namespace fluvial::text {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
constexpr std::string_view kCall = "<tool_call>", kEndCall = "</tool_call>";
constexpr std::string_view kSection = "<|tool_calls_section_begin|>", kEndSection = "<|tool_calls_section_end|>";
constexpr std::string_view kKimiCall = "<|tool_call_begin|>", kEndKimiCall = "<|tool_call_end|>";

// The earliest of `marks` in `text`: its place and which; npos when there is none.
struct Found {
  size_t at;
  size_t which;
};
Found FindFirst(std::string_view text, std::span<const std::string_view> marks) {
  Found found{std::string_view::npos, 0};
  for (size_t i = 0; i < marks.size(); ++i) {
    if (const size_t at = text.find(marks[i]); at < found.at) found = {at, i};
  }
  return found;
}

// Length of the longest end of `text` that could be the beginning of a mark.
size_t HeldBack(std::string_view text, std::span<const std::string_view> marks) {
  size_t held = 0;
  for (const std::string_view mark : marks) {
    for (size_t n = std::min(mark.size() - 1, text.size()); n > held; --n) {
      if (text.ends_with(mark.substr(0, n))) held = n;
    }
  }
  return held;
}

}  // namespace

OutputFormat DetectOutputFormat(std::string_view chat_template) {
  const auto has = [&](std::string_view mark) { return chat_template.find(mark) != std::string_view::npos; };
  OutputFormat format;
  if (has(kSection)) {
    format.tools = ToolFormat::kKimi;
  } else if (has("<arg_key>")) {
    format.tools = ToolFormat::kGlm;
  } else if (has("<function=")) {
    format.tools = ToolFormat::kQwenXml;
  } else if (has(kCall)) {
    format.tools = ToolFormat::kHermes;
  }
  format.reasoning = has(kEndThink);
  return format;
}

bool PromptOpensReasoning(std::string_view prompt) {
  const size_t end = prompt.find_last_not_of(" \t\r\n");
  return end != std::string_view::npos && prompt.substr(0, end + 1).ends_with(kThink);
}

OutputParser::OutputParser(const OutputFormat& format, ToolSchemas schemas)
    : format_(format), schemas_(std::move(schemas)) {
  state_ = !format.reasoning ? State::kContent : format.starts_in_reasoning ? State::kReasoning : State::kStart;
  // Without reasoning nothing precedes the content, so its first newlines are the model's own.
  at_edge_ = state_ == State::kReasoning;
}

std::string_view OutputParser::OpenMark() const { return format_.tools == ToolFormat::kKimi ? kKimiCall : kCall; }

std::string_view OutputParser::CloseMark() const {
  return format_.tools == ToolFormat::kKimi ? kEndKimiCall : kEndCall;
}

OutputDelta OutputParser::Push(std::string_view text) {
  buffer_ += text;
  OutputDelta out;
  Drain(false, &out);
  return out;
}

OutputDelta OutputParser::Finish() {
  OutputDelta out;
  Drain(true, &out);
  if (state_ != State::kReasoning) out.content += newlines_;
  newlines_.clear();
  return out;
}

void OutputParser::Drain(bool finish, OutputDelta* out) {
  while (!buffer_.empty() && Step(finish, out)) {
  }
}

void OutputParser::EmitText(std::string_view text, OutputDelta* out) {
  if (at_edge_) {
    const size_t start = text.find_first_not_of('\n');
    if (start == std::string_view::npos) return;
    text.remove_prefix(start);
    at_edge_ = false;
  }
  const size_t last = text.find_last_not_of('\n');
  std::string& to = state_ == State::kReasoning ? out->reasoning : out->content;
  if (last == std::string_view::npos) {
    newlines_ += text;
    return;
  }
  to += newlines_;
  to += text.substr(0, last + 1);
  newlines_ = text.substr(last + 1);
}

void OutputParser::CloseCall(std::string_view body, OutputDelta* out) {
  if (auto call = ParseToolCall(format_.tools, body, schemas_)) {
    out->tool_calls.push_back(std::move(*call));
    newlines_.clear();
    at_edge_ = true;
    return;
  }
  out->content += newlines_;
  newlines_.clear();
  out->content += OpenMark();
  out->content += body;
  out->content += CloseMark();
  at_edge_ = false;
}

bool OutputParser::EndReasoning(size_t drop) {
  buffer_.erase(0, drop);
  newlines_.clear();
  at_edge_ = true;
  state_ = State::kContent;
  return true;
}

// A model that calls while it thinks has forgotten </think>: a call that can be read ends the thought. One that cannot,
// or that </think> interrupts, is a thought about calls.
bool OutputParser::StepCallInReasoning(bool finish, OutputDelta* out) {
  if (format_.tools == ToolFormat::kKimi) {
    EndReasoning(kSection.size());
    state_ = State::kSection;
    return true;
  }
  const std::array ends = {kEndCall, kEndThink};
  const size_t from = std::max(kCall.size(), searched_ - std::min(searched_, kEndCall.size()));
  Found found = FindFirst(std::string_view(buffer_).substr(from), ends);
  searched_ = 0;
  if (found.at == std::string_view::npos) {
    if (!finish) {
      searched_ = buffer_.size();
      return false;
    }
    EmitText(buffer_, out);
    buffer_.clear();
    return false;
  }
  found.at += from;
  if (found.which == 0) {
    const std::string_view body = std::string_view(buffer_).substr(kCall.size(), found.at - kCall.size());
    if (auto call = ParseToolCall(format_.tools, body, schemas_)) {
      out->tool_calls.push_back(std::move(*call));
      return EndReasoning(found.at + kEndCall.size());
    }
    found.at += kEndCall.size();
  }
  EmitText(std::string_view(buffer_).substr(0, found.at), out);
  buffer_.erase(0, found.at);
  return true;
}

// Interprets the front of the buffer; false when more text is needed.
bool OutputParser::Step(bool finish, OutputDelta* out) {
  const auto drop = [&](size_t n) { buffer_.erase(0, n); };
  switch (state_) {
    case State::kStart: {
      const size_t start = buffer_.find_first_not_of(" \t\r\n");
      const std::string_view text = start == std::string::npos ? "" : std::string_view(buffer_).substr(start);
      if (text.starts_with(kThink)) {
        drop(start + kThink.size());
        state_ = State::kReasoning;
        at_edge_ = true;
        return true;
      }
      if (kThink.starts_with(text) && !finish) return false;
      state_ = State::kContent;
      return true;
    }
    case State::kReasoning: {
      const bool tools = format_.tools != ToolFormat::kNone;
      const std::array all = {kEndThink, format_.tools == ToolFormat::kKimi ? kSection : kCall};
      const std::span<const std::string_view> marks(all.data(), tools ? 2 : 1);
      const Found found = FindFirst(buffer_, marks);
      if (found.at != std::string_view::npos) {
        EmitText(std::string_view(buffer_).substr(0, found.at), out);
        drop(found.at);
        return found.which == 0 ? EndReasoning(kEndThink.size()) : StepCallInReasoning(finish, out);
      }
      const size_t ready = buffer_.size() - (finish ? 0 : HeldBack(buffer_, marks));
      EmitText(std::string_view(buffer_).substr(0, ready), out);
      drop(ready);
      return false;
    }
    case State::kContent:
    case State::kSection: {
      const bool section = state_ == State::kSection;
      const bool kimi = format_.tools == ToolFormat::kKimi;
      std::array<std::string_view, 2> marks{};
      size_t count = 0;
      if (section) {
        marks = {kKimiCall, kEndSection};
        count = 2;
      } else if (format_.tools != ToolFormat::kNone) {
        marks[count++] = kimi ? kSection : kCall;
      }
      const std::span<const std::string_view> active(marks.data(), count);
      const Found found = FindFirst(buffer_, active);
      if (found.at == std::string_view::npos) {
        const size_t ready = buffer_.size() - (finish ? 0 : HeldBack(buffer_, active));
        EmitText(std::string_view(buffer_).substr(0, ready), out);
        drop(ready);
        return false;
      }
      EmitText(std::string_view(buffer_).substr(0, found.at), out);
      drop(found.at + marks[found.which].size());
      if (section) {
        state_ = found.which == 0 ? State::kCall : State::kContent;
      } else {
        state_ = kimi ? State::kSection : State::kCall;
      }
      if (kimi) {
        newlines_.clear();
        at_edge_ = true;
      }
      return true;
    }
    case State::kCall: {
      const size_t end = buffer_.find(CloseMark(), searched_ - std::min(searched_, CloseMark().size()));
      searched_ = end == std::string::npos && !finish ? buffer_.size() : 0;
      if (end == std::string::npos) {
        if (!finish) return false;
        out->content += newlines_;
        newlines_.clear();
        out->content += OpenMark();
        out->content += buffer_;
        drop(buffer_.size());
        return false;
      }
      CloseCall(std::string_view(buffer_).substr(0, end), out);
      drop(end + CloseMark().size());
      state_ = format_.tools == ToolFormat::kKimi ? State::kSection : State::kContent;
      return true;
    }
  }
  return false;
}

}  // namespace fluvial::text
