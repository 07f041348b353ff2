// SPDX-License-Identifier: Apache-2.0
// ProcessorConfig from the JSON files of a checkpoint; the JSON library stays in this file.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "vision/processor.h"

namespace fluvial::vision {
namespace {

using nlohmann::json;

constexpr size_t kMaxJsonBytes = size_t{16} << 20;

Status Unusable(const std::string& file, const std::string& what) { return Status::UnusableModel(file + ": " + what); }

/// The object in `file`; nothing when there is no such file.
Result<std::optional<json>> ReadObject(const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::optional<json>();
  if (std::filesystem::file_size(file, ignored) > kMaxJsonBytes) return Unusable(file, "larger than 16 MiB");
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!in || value.is_discarded() || !value.is_object()) return Unusable(file, "not a JSON object");
  return std::optional<json>(std::move(value));
}

/// Typed questions to one object; the first wrong answer is kept.
class Reader {
 public:
  Reader(const json& object, std::string file) : object_(object), file_(std::move(file)) {}

  void Int(const char* key, int64_t low, int64_t high, int64_t& out) {
    const json* v = Find(key);
    if (v == nullptr) return;
    if (!v->is_number_integer() && !v->is_number_float()) return Bad(key);
    const double d = v->get<double>();
    if (!(d >= static_cast<double>(low) && d <= static_cast<double>(high))) return Bad(key);
    out = static_cast<int64_t>(d);
  }
  void Float(const char* key, double& out) {
    const json* v = Find(key);
    if (v == nullptr) return;
    if (!v->is_number() || !(v->get<double>() > 0)) return Bad(key);
    out = v->get<double>();
  }
  void Three(const char* key, bool positive, std::array<double, 3>& out) {
    const json* v = Find(key);
    if (v == nullptr) return;
    if (!v->is_array() || v->size() != 3) return Bad(key);
    for (size_t i = 0; i < 3; ++i) {
      if (!(*v)[i].is_number() || (positive && !((*v)[i].get<double>() > 0))) return Bad(key);
      out[i] = (*v)[i].get<double>();
    }
  }
  /// Bounds in any of their spellings.
  void Bounds(PixelBounds& out) {
    constexpr int64_t kMost = int64_t{1} << 40;
    if (const json* size = Find("size"); size != nullptr && size->is_object()) {
      Reader inner(*size, file_);
      for (const char* key : {"min_pixels", "shortest_edge"}) inner.Int(key, 1, kMost, out.min);
      for (const char* key : {"max_pixels", "longest_edge"}) inner.Int(key, 1, kMost, out.max);
      if (status_.ok()) status_ = inner.status_;
    }
    Int("min_pixels", 1, kMost, out.min);
    Int("max_pixels", 1, kMost, out.max);
  }
  /// A flag that must have one value: the other one is not implemented.
  void Must(const char* key, bool wanted) {
    const json* v = Find(key);
    if (v == nullptr || (v->is_boolean() && v->get<bool>() == wanted) || !status_.ok()) return;
    status_ = Unusable(
        file_, "'" + std::string(key) + "' must be " + (wanted ? "true" : "false") + ": nothing else is supported");
  }
  std::string String(const char* key) {
    const json* v = Find(key);
    return v != nullptr && v->is_string() ? v->get<std::string>() : "";
  }
  const Status& status() const { return status_; }

 private:
  const json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  void Bad(const char* key) {
    if (status_.ok()) status_ = Unusable(file_, "'" + std::string(key) + "' has a wrong type or value");
  }

  const json& object_;
  std::string file_;
  Status status_;
};

void ReadShared(Reader& r, ProcessorConfig& c) {
  r.Int("patch_size", 1, 256, c.patch);
  r.Int("temporal_patch_size", 1, 16, c.temporal_patch);
  r.Int("merge_size", 1, 16, c.merge);
  for (const char* key : {"do_resize", "do_rescale", "do_normalize"}) r.Must(key, true);
}

/// The defaults of transformers' classes, which files may leave out.
ProcessorConfig Defaults(Family family) {
  ProcessorConfig c;
  c.family = family;
  c.image = {56 * 56, 28 * 28 * 1280};
  if (family == Family::kQwen2_5Vl) {
    c.patch = 14;
    c.video = {128 * 28 * 28, 28 * 28 * 768};
    c.mean = c.video_mean = {0.48145466, 0.4578275, 0.40821073};
    c.std = c.video_std = {0.26862954, 0.26130258, 0.27577711};
  } else {
    c.video = {128 * 32 * 32, 32 * 32 * 768};
  }
  return c;
}

}  // namespace

Result<ProcessorConfig> ReadProcessorConfig(const std::string& directory) {
  const std::string config_file = directory + "/config.json";
  FLUVIAL_ASSIGN_OR_RETURN(const std::optional<json> config, ReadObject(config_file));
  if (!config.has_value()) return Unusable(config_file, "the file is missing");
  const std::string type = Reader(*config, config_file).String("model_type");
  ProcessorConfig c = Defaults(type == "qwen2_5_vl" ? Family::kQwen2_5Vl : Family::kQwen3Vl);

  const std::string image_file = directory + "/preprocessor_config.json";
  const std::string video_file = directory + "/video_preprocessor_config.json";
  const std::string both_file = directory + "/processor_config.json";
  FLUVIAL_ASSIGN_OR_RETURN(std::optional<json> image, ReadObject(image_file));
  FLUVIAL_ASSIGN_OR_RETURN(std::optional<json> video, ReadObject(video_file));
  FLUVIAL_ASSIGN_OR_RETURN(const std::optional<json> both, ReadObject(both_file));
  if (both.has_value()) {
    // Files of transformers 5 hold both processors.
    const auto part = [&](const char* key, std::optional<json>& into) {
      const auto it = both->find(key);
      if (!into.has_value() && it != both->end() && it->is_object()) into = *it;
    };
    part("image_processor", image);
    part("video_processor", video);
  }
  if (!image.has_value()) {
    return Unusable(directory, "there is no preprocessor_config.json, so images cannot be prepared: download it again");
  }
  Reader r(*image, image_file);
  ReadShared(r, c);
  r.Three("image_mean", false, c.mean);
  r.Three("image_std", true, c.std);
  r.Bounds(c.image);
  FLUVIAL_RETURN_IF_ERROR(r.status());
  if (video.has_value()) {
    ProcessorConfig v = c;
    Reader rv(*video, video_file);
    ReadShared(rv, v);
    rv.Three("image_mean", false, c.video_mean);
    rv.Three("image_std", true, c.video_std);
    rv.Bounds(c.video);
    rv.Float("fps", c.fps);
    rv.Int("min_frames", 1, 1 << 20, c.min_frames);
    rv.Int("max_frames", 1, 1 << 20, c.max_frames);
    rv.Must("cap_pixels_per_frame", false);
    FLUVIAL_RETURN_IF_ERROR(rv.status());
    if (v.patch != c.patch || v.temporal_patch != c.temporal_patch || v.merge != c.merge) {
      return Unusable(video_file, "patch sizes differ from those for images");
    }
  } else {
    c.video_mean = c.mean;
    c.video_std = c.std;
  }
  if (c.image.min > c.image.max || c.video.min > c.video.max) {
    return Unusable(image_file, "the smallest number of pixels is above the largest");
  }
  return c;
}

}  // namespace fluvial::vision
