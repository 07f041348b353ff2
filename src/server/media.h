// SPDX-License-Identifier: Apache-2.0
// Images of a chat request: where their bytes may come from, and the seam to what decodes them.
//
// A server that fetches what its clients name can be made to fetch what they may not see. So: http(s) only where it was
// allowed, never to an address that is not public, the address that was checked is the one that is connected to,
// redirects are checked anew, and count, bytes and time are bounded.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fluvial/engine.h"
#include "fluvial/status.h"

namespace fluvial::server {

/// Makes the images of a request part of its prompt. One object for all requests; any thread. Null in ServedModel: the
/// model takes text only.
class ImageInput {
 public:
  virtual ~ImageInput() = default;
  /// `images`: encoded files (PNG, JPEG, WebP) in order of appearance in the messages. Writes each image's tokens over
  /// its placeholder in the rendered prompt and gives the pixels to `request`. Text of the client that looks like a
  /// placeholder is escaped at this point. kInvalidArgument when an image cannot be decoded or has no place.
  virtual Status Attach(const std::vector<std::string>& images, std::string* rendered, Request* request) const = 0;
};

struct MediaPolicy {
  int64_t max_images = 8;                     ///< of one request
  uint64_t max_bytes = uint64_t{20} << 20;    ///< of one image, encoded
  bool fetch = false;                         ///< http(s) URLs are fetched
  std::vector<std::string> domains;           ///< only from these hosts; empty: from all
  bool private_addresses = false;             ///< also from this machine and its private networks
  std::string local_path;                     ///< file:// URLs under this folder are read; empty: none
  std::chrono::milliseconds timeout{10'000};  ///< for one image, redirects included
  int max_redirects = 3;
};

/// Bytes of an image URL: data:[type];base64,..., file:///path, http(s)://. Blocks while it fetches.
/// kInvalidArgument for anything the policy does not allow, names no image file, or cannot be had.
Result<std::string> LoadImage(const std::string& url, const MediaPolicy& policy);

/// Standard base64 with padding, no white space. kInvalidArgument otherwise.
Result<std::string> DecodeBase64(std::string_view text);

/// http(s) URL taken apart. IPv6 hosts are without brackets.
struct Url {
  bool tls = false;
  std::string host;
  uint16_t port = 80;
  std::string target = "/";  ///< path and query
};
Result<Url> ParseUrl(const std::string& text);

/// Text form of an IPv4 or IPv6 address -> may be fetched from: neither private, loopback, link-local, shared,
/// multicast, reserved nor an IPv6 form of such an IPv4 address (IANA's special-purpose registries).
bool IsPublicAddress(const std::string& address);

/// GET with the policy's bounds (media_fetch.cc).
Result<std::string> FetchUrl(const std::string& url, const MediaPolicy& policy);

}  // namespace fluvial::server
