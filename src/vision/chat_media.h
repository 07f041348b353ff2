// SPDX-License-Identifier: Apache-2.0
// Pictures and videos of a conversation: finding them in messages, reading them from files and data URLs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fluvial/status.h"
#include "vision/processor.h"

namespace fluvial::vision {

struct MediaReference {
  VisionInput::Kind kind = VisionInput::Kind::kImage;
  std::string source;  ///< path, file:// URL or data: URL
};

/// The content parts of `messages` that chat templates write a placeholder for, in their order. Read are OpenAI's
/// {"type":"image_url","image_url":{"url":...}} (or "image_url": "...") and transformers' {"type":"image","image":...}
/// (also "path" or "url" for the key), and the same with `video`. kInvalidArgument naming message and part for one
/// without a source, or of another medium (audio).
Result<std::vector<MediaReference>> MediaOf(const nlohmann::ordered_json& messages);

struct MediaPolicy {
  DecodeOptions decode;
  double video_fps = 0;     ///< of folders of frames; 0 = unknown
  bool local_files = true;  ///< false (a server): paths and file:// URLs are refused
  size_t max_items = 64;    ///< of one conversation
};

/// Reads and prepares one item. kInvalidArgument naming it; a remote URL is refused: nothing is fetched.
Result<Media> LoadMedia(const Processor& processor, const MediaReference& reference, const MediaPolicy& policy);

/// All of them, in order.
Result<std::vector<Media>> LoadMedia(const Processor& processor, const std::vector<MediaReference>& references,
                                     const MediaPolicy& policy);

/// Bytes of a `data:...;base64,...` URL. kInvalidArgument for anything else.
Result<std::vector<uint8_t>> DecodeDataUrl(std::string_view url);

}  // namespace fluvial::vision
