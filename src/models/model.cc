// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include "models/footprint.h"
#include "models/glm5_next.h"
#include "models/kimi_linear.h"
#include "models/qwen3_5.h"
#include "models/qwen_vl.h"
#include "weights/model_config.h"

namespace fluvial::models {

size_t CacheSpec::SlotBytes() const {
  size_t bytes = 0;
  for (const LayerCacheSpec& l : layers) {
    if (!l.linear()) continue;
    bytes +=
        static_cast<size_t>(l.conv_width - 1) * static_cast<size_t>(l.conv_channels) * SizeOf(conv) +
        static_cast<size_t>(l.value_heads) * static_cast<size_t>(l.v) * static_cast<size_t>(l.k) * SizeOf(recurrent);
  }
  return bytes;
}

size_t CacheSpec::TokenBytes() const {
  size_t elements = 0;
  for (const LayerCacheSpec& l : layers) {
    if (!l.linear()) elements += static_cast<size_t>(l.kv_heads) * static_cast<size_t>(l.d_qk + l.d_v);
  }
  return elements * SizeOf(kv);
}

Result<size_t> Model::EncodeBytes(std::span<const VisionInput>) {
  return Status::InvalidArgument(std::string(architecture()) + " takes no images and videos");
}

Status Model::Encode(Stream&, std::span<const VisionInput>, const TensorView&, Arena&) {
  return Status::InvalidArgument(std::string(architecture()) + " takes no images and videos");
}

namespace {

/// What an architecture brings.
struct Family {
  weights::Architecture architecture;
  Result<std::unique_ptr<Model>> (*load)(const std::string& directory, weights::ModelConfig config,
                                         const LoadOptions& options, Stream& stream);
  Result<Footprint> (*footprint)(const weights::ModelConfig& config, const LoadOptions& options);
};

constexpr Family kFamilies[] = {
    {weights::Architecture::kQwen3_5, LoadQwen3_5, Qwen3_5Footprint},
    {weights::Architecture::kQwen3_5Moe, LoadQwen3_5, Qwen3_5Footprint},
    {weights::Architecture::kQwen3Next, LoadQwen3_5, Qwen3_5Footprint},
    {weights::Architecture::kQwen2_5Vl, LoadQwenVl, QwenVlFootprint},
    {weights::Architecture::kQwen3Vl, LoadQwenVl, QwenVlFootprint},
    {weights::Architecture::kQwen3VlMoe, LoadQwenVl, QwenVlFootprint},
    {weights::Architecture::kKimiLinear, LoadKimiLinear, KimiLinearFootprint},
    {weights::Architecture::kGlm5Next, LoadGlm5Next, Glm5NextFootprint},
};

Result<const Family*> Find(const weights::ModelConfig& config) {
  std::string names;
  for (const Family& f : kFamilies) {
    if (f.architecture == config.architecture) return &f;
    names += (names.empty() ? "" : ", ") + std::string(weights::Name(f.architecture));
  }
  return Status::UnusableModel("architecture '" + config.architecture_name +
                               "' cannot run yet; those that can: " + names);
}

}  // namespace

Result<std::unique_ptr<Model>> LoadModel(const std::string& directory, const LoadOptions& options, Stream& stream) {
  FLUVIAL_ASSIGN_OR_RETURN(weights::ModelConfig config, weights::ReadModelConfig(directory));
  FLUVIAL_ASSIGN_OR_RETURN(const Family* family, Find(config));
  return family->load(directory, std::move(config), options, stream);
}

Result<Footprint> FootprintOf(const weights::ModelConfig& config, const LoadOptions& options) {
  FLUVIAL_ASSIGN_OR_RETURN(const Family* family, Find(config));
  FLUVIAL_ASSIGN_OR_RETURN(Footprint out, family->footprint(config, options));
  if (config.vision.has_value()) out.vision_parameters = VisionParameters(*config.vision);
  out.active_parameters = out.parameters;
  for (int64_t i = 0; i < config.layers; ++i) {
    if (!config.HasExperts(i)) continue;
    const auto& moe = config.moe;
    out.active_parameters -= (moe.experts - moe.per_token) * 3 * moe.intermediate * config.hidden;
  }
  return out;
}

}  // namespace fluvial::models
