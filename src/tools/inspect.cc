// SPDX-License-Identifier: Apache-2.0
// fluvial inspect: what a checkpoint is - configuration, tensors, and the memory that running it takes.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/dtype.h"
#include "models/decoder.h"
#include "models/footprint.h"
#include "tools/command.h"
#include "tools/footprint_text.h"
#include "weights/checkpoint.h"
#include "weights/model_config.h"

namespace fluvial::tools {
namespace {

struct Options {
  std::string model;
  bool tensors = false;
  bool json = false;
};

/// What is known of a model: config.json always, tensors when they are there.
struct Known {
  weights::ModelConfig config;
  models::Footprint footprint;
  std::optional<weights::Checkpoint> checkpoint;
  DType dtype = DType::kBF16;
};

Result<Known> ReadKnown(const std::string& directory) {
  Known k;
  FLUVIAL_ASSIGN_OR_RETURN(k.config, weights::ReadModelConfig(directory));
  // Files that are there must be good; a folder of config.json alone is a question about a model that is elsewhere.
  const std::filesystem::path folder(directory);
  std::error_code error;
  if (std::filesystem::exists(folder / "model.safetensors", error) ||
      std::filesystem::exists(folder / "model.safetensors.index.json", error)) {
    FLUVIAL_ASSIGN_OR_RETURN(k.checkpoint, weights::Checkpoint::Open(directory));
  }
  const bool tensors = k.checkpoint.has_value() && !k.checkpoint->tensors().empty();
  k.dtype = k.config.dtype.value_or(tensors ? k.checkpoint->tensors().front().entry.dtype : DType::kBF16);
  models::LoadOptions options;
  options.dtype = k.dtype;
  FLUVIAL_ASSIGN_OR_RETURN(k.footprint, models::FootprintOf(k.config, options));
  return k;
}

uint64_t WeightBytes(const Known& k) {
  if (k.checkpoint.has_value()) return k.checkpoint->bytes();
  return static_cast<uint64_t>(k.footprint.all_parameters()) * SizeOf(k.dtype);
}

std::string Shape(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? "," : "") + std::to_string(shape[i]);
  return s + "]";
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

std::string Text(const Options& o, const Known& k) {
  const weights::ModelConfig& c = k.config;
  const auto n = [](auto x) { return std::to_string(x); };
  const int64_t linear = c.CountLayers(weights::LayerType::kLinearAttention);
  const int64_t full = c.CountLayers(weights::LayerType::kFullAttention);
  std::string out;
  out += "architecture  " + c.architecture_name + " (" + std::string(weights::Name(c.architecture)) + ")\n";
  out += "dtype         " + std::string(Name(k.dtype)) + ", recurrent state " +
         std::string(Name(c.linear.state_dtype)) + "\n";
  out += "layers        " + n(c.layers) + ": " + n(linear) + " linear attention, " + n(full) + " full attention\n";
  int64_t sparse = 0;
  for (int64_t i = 0; i < c.layers; ++i) sparse += c.HasExperts(i) ? 1 : 0;
  out += "hidden        " + n(c.hidden) + (sparse < c.layers ? ", feed-forward " + n(c.intermediate) : "") +
         ", vocabulary " + n(c.vocab) + (c.tied_embeddings ? " (tied embeddings)" : "") + "\n";
  out += "linear        " + n(c.linear.key_heads) + " key heads of " + n(c.linear.key_dim) + ", " +
         n(c.linear.value_heads) + " value heads of " + n(c.linear.value_dim) + ", convolution " +
         n(c.linear.conv_kernel) + "\n";
  if (const auto& a = c.latent; a.rank > 0) {
    out += "attention     " + n(c.heads) + " heads of " + n(a.qk()) + " and " + n(a.v) + ", latent of " + n(a.rank) +
           (a.rope > 0 ? " and " + n(a.rope) + " shared" : "") + ", no position encoding\n";
  } else {
    out += "attention     " + n(c.heads) + " heads, " + n(c.kv_heads) + " KV heads of " + n(c.head_dim) + ", rotary " +
           n(c.rotary_dim()) + "\n";
  }
  if (c.indexer.topk > 0) {
    out += "indexer       " + n(c.indexer.heads) + " heads of " + n(c.indexer.dim) + ", keeps " + n(c.indexer.topk) +
           " tokens in pools of " + n(c.indexer.pool) + "\n";
  }
  if (c.hyper.streams > 1) out += "streams       " + n(c.hyper.streams) + " (hyper-connections)\n";
  if (c.moe.experts > 0) {
    out += "experts       " + n(c.moe.experts) + ", " + n(c.moe.per_token) + " per token, feed-forward " +
           n(c.moe.intermediate) + ", shared " + n(c.moe.shared_intermediate) + ", in " + n(sparse) + " layers\n";
  }
  if (c.vision.has_value()) {
    out += "vision        " + n(c.vision->depth) + " layers of " + n(c.vision->hidden) + ", patch " +
           n(c.vision->patch) + "\n";
  }
  out += "positions     " + n(c.max_positions) + "\n";
  out += "parameters    " + ParameterText(k.footprint) + "\n\n";
  if (k.checkpoint.has_value()) {
    out += "tensors       " + n(k.checkpoint->tensors().size()) + " in " + n(k.checkpoint->shards()) + " file(s), " +
           n(models::CountParameters(*k.checkpoint)) + " parameters\n";
    out += TensorLines(*k.checkpoint, o.tensors);
  } else {
    out += "tensors       none here: all figures are those of config.json\n";
  }
  const uint64_t state = k.footprint.cache.SlotBytes(), kv = k.footprint.cache.TokenBytes();
  out += "\nmemory\n";
  out += "  weights                   " + ByteText(WeightBytes(k)) +
         (k.checkpoint.has_value() ? " (mapped from disk)\n" : " (expected)\n");
  out += "  state of one sequence     " + ByteText(state) + "\n";
  out += "  keys and values           " + ByteText(kv) + " per token, " +
         ByteText(kv * static_cast<uint64_t>(c.max_positions)) + " at " + n(c.max_positions) + " tokens\n";
  return out;
}

std::string Json(const Known& k) {
  using nlohmann::ordered_json;
  const weights::ModelConfig& c = k.config;
  ordered_json root;
  ordered_json& config = root["config"];
  config["architecture"] = c.architecture_name;
  config["model_type"] = c.model_type;
  config["dtype"] = Name(k.dtype);
  config["layers"] = c.layers;
  config["linear_attention_layers"] = c.CountLayers(weights::LayerType::kLinearAttention);
  config["full_attention_layers"] = c.CountLayers(weights::LayerType::kFullAttention);
  config["hidden"] = c.hidden;
  config["intermediate"] = c.intermediate;
  config["vocab"] = c.vocab;
  config["tied_embeddings"] = c.tied_embeddings;
  config["max_positions"] = c.max_positions;
  config["attention"] = {{"heads", c.heads}, {"kv_heads", c.kv_heads}, {"head_dim", c.head_dim}};
  if (const auto& a = c.latent; a.rank > 0) {
    config["latent_attention"] = {{"rank", a.rank}, {"shared", a.rope}, {"nope", a.nope}, {"v", a.v}};
  }
  if (const auto& x = c.indexer; x.topk > 0) {
    config["indexer"] = {{"topk", x.topk}, {"pool", x.pool}, {"heads", x.heads}, {"dim", x.dim}};
  }
  config["linear_attention"] = {{"key_heads", c.linear.key_heads}, {"value_heads", c.linear.value_heads},
                                {"key_dim", c.linear.key_dim},     {"value_dim", c.linear.value_dim},
                                {"conv", c.linear.conv_kernel},    {"state_dtype", Name(c.linear.state_dtype)}};
  config["experts"] = c.moe.experts;
  config["vision"] = c.vision.has_value();
  const models::Footprint& f = k.footprint;
  root["memory"] = {{"weight_bytes", WeightBytes(k)},
                    {"state_bytes_per_sequence", f.cache.SlotBytes()},
                    {"kv_bytes_per_token", f.cache.TokenBytes()}};
  root["expected_parameters"] = {{"text", f.parameters},
                                 {"active", f.active_parameters},
                                 {"mtp", f.mtp_parameters},
                                 {"vision", f.vision_parameters}};
  root["parameters"] = k.checkpoint.has_value() ? models::CountParameters(*k.checkpoint) : f.all_parameters();
  root["tensors"] = ordered_json::array();
  for (const auto& t : k.checkpoint.has_value() ? k.checkpoint->tensors() : std::vector<weights::CheckpointTensor>()) {
    root["tensors"].push_back({{"name", t.entry.name},
                               {"dtype", Name(t.entry.dtype)},
                               {"shape", t.entry.shape},
                               {"file", k.checkpoint->FileOf(t)},
                               {"bytes", t.entry.end - t.entry.begin}});
  }
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Status RunInspect(const Options& o) {
  FLUVIAL_ASSIGN_OR_RETURN(const Known known, ReadKnown(o.model));
  Print(o.json ? Json(known) : Text(o, known));
  return Status::Ok();
}

}  // namespace

Command AddInspect(CLI::App& root) {
  CLI::App* app = root.add_subcommand("inspect", "What a checkpoint is: configuration, tensors, memory plan");
  auto o = std::make_shared<Options>();
  app->add_option("model,--model", o->model,
                  "Folder of a Hugging Face checkpoint; config.json alone gives what it tells")
      ->type_name("MODEL")
      ->required();
  app->add_flag("--tensors", o->tensors, "List every tensor (default: one line for equal tensors of all layers)");
  app->add_flag("--json", o->json, "One JSON object (docs/cli.md)");
  app->footer("Examples:\n  fluvial inspect models/demo-random-gdn\n  fluvial inspect ./Qwen3.5-0.8B --json");
  return {app, [o] {
            const Status s = RunInspect(*o);
            return s.ok() ? Finish() : Fail(s);
          }};
}

}  // namespace fluvial::tools
