// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

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

Result<std::unique_ptr<Model>> LoadModel(const std::string& directory, const LoadOptions& options, Stream& stream) {
  FLUVIAL_ASSIGN_OR_RETURN(weights::ModelConfig config, weights::ReadModelConfig(directory));
  switch (config.architecture) {
    case weights::Architecture::kQwen3_5:
    case weights::Architecture::kQwen3_5Moe:
    case weights::Architecture::kQwen3Next:
      return LoadQwen3_5(directory, std::move(config), options, stream);
    case weights::Architecture::kQwen2_5Vl:
    case weights::Architecture::kQwen3Vl:
    case weights::Architecture::kQwen3VlMoe:
      return LoadQwenVl(directory, std::move(config), options, stream);
  }
  return Status::UnusableModel(directory + ": architecture '" + config.architecture_name + "' cannot run yet");
}

}  // namespace fluvial::models
