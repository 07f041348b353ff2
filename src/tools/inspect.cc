// SPDX-License-Identifier: Apache-2.0
// fluvial inspect: what a checkpoint is - configuration, tensors, and the memory that running it takes.
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/dtype.h"
#include "tools/command.h"
#include "weights/checkpoint.h"
#include "weights/model_config.h"

namespace fluvial::tools {
namespace {

struct Options {
  std::string model;
  bool tensors = false;
  bool json = false;
};

struct MemoryPlan {
  uint64_t weight_bytes = 0;
  uint64_t state_bytes_per_sequence = 0;  ///< recurrent states and convolution windows
  uint64_t kv_bytes_per_token = 0;
  DType dtype = DType::kBF16;
};

MemoryPlan PlanOf(const weights::ModelConfig& c, const weights::Checkpoint& checkpoint) {
  MemoryPlan m;
  m.weight_bytes = checkpoint.bytes();
  m.dtype = c.dtype.value_or(checkpoint.tensors().empty() ? DType::kBF16 : checkpoint.tensors().front().entry.dtype);
  const uint64_t io = SizeOf(m.dtype);
  const auto count = [&](weights::LayerType t) { return static_cast<uint64_t>(c.CountLayers(t)); };
  const auto& l = c.linear;
  m.state_bytes_per_sequence = count(weights::LayerType::kLinearAttention) *
                               (static_cast<uint64_t>(l.value_heads * l.value_dim * l.key_dim) * SizeOf(l.state_dtype) +
                                static_cast<uint64_t>((l.conv_kernel - 1) * l.conv_channels()) * io);
  m.kv_bytes_per_token =
      count(weights::LayerType::kFullAttention) * 2 * static_cast<uint64_t>(c.kv_heads * c.head_dim) * io;
  return m;
}

std::string Bytes(uint64_t n) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double x = static_cast<double>(n);
  size_t unit = 0;
  while (x >= 1024 && unit + 1 < kUnits.size()) {
    x /= 1024;
    ++unit;
  }
  char buffer[48];
  std::snprintf(buffer, sizeof(buffer), unit == 0 ? "%.0f %s" : "%.2f %s", x, kUnits[unit]);
  return buffer;
}

std::string Shape(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? "," : "") + std::to_string(shape[i]);
  return s + "]";
}

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

/// "model.layers.12.mlp.up_proj.weight" -> "model.layers.*.mlp.up_proj.weight".
std::string Pattern(const std::string& name) {
  std::string out;
  for (size_t begin = 0; begin <= name.size();) {
    size_t end = name.find('.', begin);
    if (end == std::string::npos) end = name.size();
    const std::string part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out += (begin ? "." : "") + (number ? "*" : part);
    begin = end + 1;
  }
  return out;
}

std::string TensorLines(const weights::Checkpoint& checkpoint, bool all) {
  struct Line {
    std::string name, type;
    int64_t count = 0;
  };
  std::vector<Line> lines;
  std::map<std::string, size_t> at;
  for (const auto& t : checkpoint.tensors()) {
    const std::string name = all ? t.entry.name : Pattern(t.entry.name);
    const std::string type = std::string(Name(t.entry.dtype)) + " " + Shape(t.entry.shape);
    const auto [it, inserted] = at.emplace(name + " " + type, lines.size());
    if (inserted) lines.push_back({name, type, 0});
    ++lines[it->second].count;
  }
  size_t width = 0;
  for (const Line& l : lines) width = std::max(width, l.name.size());
  std::string out;
  for (const Line& l : lines) {
    out += "  " + l.name + std::string(width - l.name.size() + 2, ' ') + l.type;
    if (l.count > 1) out += "  x" + std::to_string(l.count);
    out += "\n";
  }
  return out;
}

int64_t Parameters(const weights::Checkpoint& checkpoint) {
  int64_t n = 0;
  for (const auto& t : checkpoint.tensors()) n += Elements(t.entry.shape);
  return n;
}

std::string Text(const Options& o, const weights::ModelConfig& c, const weights::Checkpoint& checkpoint) {
  const MemoryPlan m = PlanOf(c, checkpoint);
  const auto n = [](auto x) { return std::to_string(x); };
  const int64_t linear = c.CountLayers(weights::LayerType::kLinearAttention);
  const int64_t full = c.CountLayers(weights::LayerType::kFullAttention);
  std::string out;
  out += "architecture  " + c.architecture_name + " (" + std::string(weights::Name(c.architecture)) + ")\n";
  out += "dtype         " + std::string(Name(m.dtype)) + ", recurrent state " +
         std::string(Name(c.linear.state_dtype)) + "\n";
  out += "layers        " + n(c.layers) + ": " + n(linear) + " linear attention, " + n(full) + " full attention\n";
  out += "hidden        " + n(c.hidden) + ", feed-forward " + n(c.intermediate) + ", vocabulary " + n(c.vocab) +
         (c.tied_embeddings ? " (tied embeddings)" : "") + "\n";
  out += "linear        " + n(c.linear.key_heads) + " key heads of " + n(c.linear.key_dim) + ", " +
         n(c.linear.value_heads) + " value heads of " + n(c.linear.value_dim) + ", convolution " +
         n(c.linear.conv_kernel) + "\n";
  out += "attention     " + n(c.heads) + " heads, " + n(c.kv_heads) + " KV heads of " + n(c.head_dim) + ", rotary " +
         n(c.rotary_dim()) + "\n";
  if (c.moe.experts > 0) {
    out += "experts       " + n(c.moe.experts) + ", " + n(c.moe.per_token) + " per token, feed-forward " +
           n(c.moe.intermediate) + "\n";
  }
  if (c.vision.has_value()) {
    out += "vision        " + n(c.vision->depth) + " layers of " + n(c.vision->hidden) + ", patch " +
           n(c.vision->patch) + "\n";
  }
  out += "positions     " + n(c.max_positions) + "\n\n";
  out += "tensors       " + n(checkpoint.tensors().size()) + " in " + n(checkpoint.shards()) + " file(s), " +
         n(Parameters(checkpoint)) + " parameters\n";
  out += TensorLines(checkpoint, o.tensors);
  out += "\nmemory\n";
  out += "  weights                   " + Bytes(m.weight_bytes) + " (mapped from disk)\n";
  out += "  state of one sequence     " + Bytes(m.state_bytes_per_sequence) + "\n";
  out += "  keys and values           " + Bytes(m.kv_bytes_per_token) + " per token, " +
         Bytes(m.kv_bytes_per_token * static_cast<uint64_t>(c.max_positions)) + " at " + n(c.max_positions) +
         " tokens\n";
  return out;
}

std::string Json(const weights::ModelConfig& c, const weights::Checkpoint& checkpoint) {
  using nlohmann::ordered_json;
  const MemoryPlan m = PlanOf(c, checkpoint);
  ordered_json root;
  ordered_json& config = root["config"];
  config["architecture"] = c.architecture_name;
  config["model_type"] = c.model_type;
  config["dtype"] = Name(m.dtype);
  config["layers"] = c.layers;
  config["linear_attention_layers"] = c.CountLayers(weights::LayerType::kLinearAttention);
  config["full_attention_layers"] = c.CountLayers(weights::LayerType::kFullAttention);
  config["hidden"] = c.hidden;
  config["intermediate"] = c.intermediate;
  config["vocab"] = c.vocab;
  config["tied_embeddings"] = c.tied_embeddings;
  config["max_positions"] = c.max_positions;
  config["attention"] = {{"heads", c.heads}, {"kv_heads", c.kv_heads}, {"head_dim", c.head_dim}};
  config["linear_attention"] = {{"key_heads", c.linear.key_heads}, {"value_heads", c.linear.value_heads},
                                {"key_dim", c.linear.key_dim},     {"value_dim", c.linear.value_dim},
                                {"conv", c.linear.conv_kernel},    {"state_dtype", Name(c.linear.state_dtype)}};
  config["experts"] = c.moe.experts;
  config["vision"] = c.vision.has_value();
  root["memory"] = {{"weight_bytes", m.weight_bytes},
                    {"state_bytes_per_sequence", m.state_bytes_per_sequence},
                    {"kv_bytes_per_token", m.kv_bytes_per_token}};
  root["parameters"] = Parameters(checkpoint);
  root["tensors"] = ordered_json::array();
  for (const auto& t : checkpoint.tensors()) {
    root["tensors"].push_back({{"name", t.entry.name},
                               {"dtype", Name(t.entry.dtype)},
                               {"shape", t.entry.shape},
                               {"file", checkpoint.FileOf(t)},
                               {"bytes", t.entry.end - t.entry.begin}});
  }
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Status RunInspect(const Options& o) {
  FLUVIAL_ASSIGN_OR_RETURN(const weights::ModelConfig config, weights::ReadModelConfig(o.model));
  FLUVIAL_ASSIGN_OR_RETURN(const weights::Checkpoint checkpoint, weights::Checkpoint::Open(o.model));
  Print(o.json ? Json(config, checkpoint) : Text(o, config, checkpoint));
  return Status::Ok();
}

}  // namespace

Command AddInspect(CLI::App& root) {
  CLI::App* app = root.add_subcommand("inspect", "What a checkpoint is: configuration, tensors, memory plan");
  auto o = std::make_shared<Options>();
  app->add_option("model,--model", o->model, "Folder of a Hugging Face checkpoint")->type_name("MODEL")->required();
  app->add_flag("--tensors", o->tensors, "List every tensor (default: one line for equal tensors of all layers)");
  app->add_flag("--json", o->json, "One JSON object (docs/cli.md)");
  app->footer("Examples:\n  fluvial inspect models/demo-random-gdn\n  fluvial inspect ./Qwen3.5-0.8B --json");
  return {app, [o] {
            const Status s = RunInspect(*o);
            return s.ok() ? Finish() : Fail(s);
          }};
}

}  // namespace fluvial::tools
