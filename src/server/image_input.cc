// SPDX-License-Identifier: Apache-2.0
#include "server/image_input.h"

#include <span>
#include <utility>

#include "vision/processor.h"

namespace fluvial::server {
namespace {

class ProcessorImages final : public ImageInput {
 public:
  ProcessorImages(vision::Processor processor, const vision::DecodeOptions& options)
      : processor_(std::move(processor)), options_(options) {}

  Status Attach(const std::vector<std::string>& images, std::string* rendered, Request* request) const override {
    std::vector<vision::Media> media;
    for (size_t i = 0; i < images.size(); ++i) {
      const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(images[i].data()), images[i].size());
      const std::string name = "image " + std::to_string(i + 1);
      FLUVIAL_ASSIGN_OR_RETURN(const vision::Image image, vision::DecodeImage(bytes, options_, name));
      Result<vision::Media> one = processor_.Process(image);
      if (!one.ok()) return Status(one.status().code(), name + ": " + one.status().message());
      media.push_back(std::move(one).value());
    }
    std::vector<size_t> order;
    FLUVIAL_ASSIGN_OR_RETURN(*rendered, processor_.ExpandPrompt(*rendered, media, order));
    if (request == nullptr) return Status::Ok();  // only counting tokens
    for (const size_t i : order) request->vision.push_back(media[i].input);
    return Status::Ok();
  }

 private:
  vision::Processor processor_;
  vision::DecodeOptions options_;
};

}  // namespace

Result<std::shared_ptr<const ImageInput>> MakeImageInput(const std::string& directory,
                                                         const vision::DecodeOptions& options) {
  FLUVIAL_ASSIGN_OR_RETURN(vision::Processor processor, vision::Processor::Load(directory));
  return std::shared_ptr<const ImageInput>(std::make_shared<ProcessorImages>(std::move(processor), options));
}

}  // namespace fluvial::server
