// SPDX-License-Identifier: Apache-2.0
#include "vision/chat_media.h"

#include <array>
#include <utility>

#include "vision/video.h"

namespace fluvial::vision {
namespace {

using Json = nlohmann::ordered_json;

/// Data URLs are long: messages show how they begin.
std::string Shown(const std::string& source) {
  constexpr size_t kMost = 80;
  return source.size() <= kMost ? source : source.substr(0, kMost) + "...";
}

/// The text under `key`: itself, or the `url` of an object.
const std::string* Source(const Json& part, const char* key) {
  const auto it = part.find(key);
  if (it == part.end()) return nullptr;
  if (it->is_string()) return it->get_ptr<const std::string*>();
  if (!it->is_object()) return nullptr;
  const auto url = it->find("url");
  return url != it->end() && url->is_string() ? url->get_ptr<const std::string*>() : nullptr;
}

int Digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+' || c == '-') return 62;
  if (c == '/' || c == '_') return 63;
  return -1;
}

}  // namespace

Result<std::vector<MediaReference>> MediaOf(const Json& messages) {
  std::vector<MediaReference> out;
  if (!messages.is_array()) return out;
  for (size_t m = 0; m < messages.size(); ++m) {
    const Json& message = messages[m];
    const auto content = message.is_object() ? message.find("content") : message.end();
    if (!message.is_object() || content == message.end() || !content->is_array()) continue;
    for (size_t p = 0; p < content->size(); ++p) {
      const Json& part = (*content)[p];
      if (!part.is_object()) continue;
      const std::string where = "part " + std::to_string(p + 1) + " of message " + std::to_string(m + 1);
      const auto type_entry = part.find("type");
      const std::string type =
          type_entry != part.end() && type_entry->is_string() ? type_entry->get<std::string>() : "";
      if (type.find("audio") != std::string::npos || part.contains("audio")) {
        return Status::InvalidArgument(where + " is audio, which no model here takes: leave it out");
      }
      const bool video = type == "video" || type == "video_url" || (type.empty() && part.contains("video"));
      const bool image = type == "image" || type == "image_url" ||
                         (type.empty() && (part.contains("image") || part.contains("image_url")));
      if (!video && !image) continue;
      const std::string* source = nullptr;
      for (const char* key : {video ? "video" : "image", video ? "video_url" : "image_url", "url", "path"}) {
        if (source == nullptr) source = Source(part, key);
      }
      if (source == nullptr || source->empty()) {
        return Status::InvalidArgument(where + " names no " + (video ? "video" : "image") +
                                       ": write its path or a data: URL under '" + (video ? "video" : "image") +
                                       "' or '" + (video ? "video_url" : "image_url") + ".url'");
      }
      out.push_back({video ? VisionInput::Kind::kVideo : VisionInput::Kind::kImage, *source});
    }
  }
  return out;
}

Result<std::vector<uint8_t>> DecodeDataUrl(std::string_view url) {
  const Status bad = Status::InvalidArgument("the data: URL is damaged: write data:image/png;base64,... ");
  const size_t comma = url.find(',');
  if (!url.starts_with("data:") || comma == std::string_view::npos || !url.substr(0, comma).ends_with(";base64")) {
    return bad;
  }
  url.remove_prefix(comma + 1);
  while (!url.empty() && url.back() == '=') url.remove_suffix(1);
  std::vector<uint8_t> out;
  out.reserve(url.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : url) {
    if (c == '\n' || c == '\r' || c == ' ') continue;
    const int digit = Digit(c);
    if (digit < 0) return bad;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<uint8_t>(bits >> count));
  }
  if (count == 6) return bad;  // a single digit is no byte
  return out;
}

Result<Media> LoadMedia(const Processor& processor, const MediaReference& reference, const MediaPolicy& policy) {
  const bool video = reference.kind == VisionInput::Kind::kVideo;
  std::string source = reference.source;
  const std::string name = Shown(source);
  const auto named = [&](const Status& status) {
    const bool already = status.message().starts_with(name);
    return already ? status : Status(status.code(), name + ": " + status.message());
  };
  if (source.starts_with("http://") || source.starts_with("https://")) {
    return named(Status::InvalidArgument("nothing is fetched from the network: send a data: URL or a file"));
  }
  if (source.starts_with("data:")) {
    if (video)
      return named(Status::InvalidArgument("videos cannot be sent as data: URLs: send their frames as images"));
    const Result<std::vector<uint8_t>> bytes = DecodeDataUrl(source);
    if (!bytes.ok()) return named(bytes.status());
    FLUVIAL_ASSIGN_OR_RETURN(const Image image, DecodeImage(*bytes, policy.decode, name));
    Result<Media> media = processor.Process(image);
    return media.ok() ? std::move(media) : Result<Media>(named(media.status()));
  }
  if (!policy.local_files) {
    return named(Status::InvalidArgument("files of the server are not read: send a data: URL"));
  }
  if (source.starts_with("file://")) source.erase(0, 7);
  Result<Media> media = Status::Ok();
  if (video) {
    FLUVIAL_ASSIGN_OR_RETURN(const Video frames,
                             ReadVideo(source, processor.config(), {policy.decode, policy.video_fps}));
    media = processor.Process(frames);
  } else {
    FLUVIAL_ASSIGN_OR_RETURN(const Image image, ReadImage(source, policy.decode));
    media = processor.Process(image);
  }
  return media.ok() ? std::move(media) : Result<Media>(named(media.status()));
}

Result<std::vector<Media>> LoadMedia(const Processor& processor, const std::vector<MediaReference>& references,
                                     const MediaPolicy& policy) {
  if (references.size() > policy.max_items) {
    return Status::InvalidArgument("the conversation has " + std::to_string(references.size()) +
                                   " images and videos: at most " + std::to_string(policy.max_items) + " are taken");
  }
  std::vector<Media> out;
  for (const MediaReference& r : references) {
    FLUVIAL_ASSIGN_OR_RETURN(Media media, LoadMedia(processor, r, policy));
    out.push_back(std::move(media));
  }
  return out;
}

}  // namespace fluvial::vision
