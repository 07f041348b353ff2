// SPDX-License-Identifier: Apache-2.0
#include "models/footprint.h"

#include "models/vision_tower.h"

namespace fluvial::models {

int64_t VisionParameters(const weights::VisionConfig& vision) {
  weights::ModelConfig config;
  config.vision = vision;
  auto reader = weights::WeightReader::Counting();
  const VisionTower tower(reader, "", config, DType::kBF16);
  return reader.asked_elements();
}

}  // namespace fluvial::models
