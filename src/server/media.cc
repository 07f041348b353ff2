// SPDX-License-Identifier: Apache-2.0
#include "server/media.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

namespace fluvial::server {
namespace {

Status Bad(const std::string& message) { return Status::InvalidArgument(message); }

std::string Short(const std::string& url) { return url.size() <= 80 ? url : url.substr(0, 77) + "..."; }

Status TooLarge(uint64_t most) {
  return Bad("the image is larger than " + std::to_string(most) + " bytes: send a smaller one");
}

Result<std::string> DecodeDataUrl(std::string_view url, const MediaPolicy& policy) {
  const size_t comma = url.find(',');
  constexpr std::string_view kBase64 = ";base64";
  if (comma == std::string_view::npos || !url.substr(0, comma).ends_with(kBase64)) {
    return Bad("a data URL of an image is written data:image/png;base64,...");
  }
  std::string_view type = url.substr(5, comma - 5 - kBase64.size());
  type = type.substr(0, type.find(';'));
  if (!type.empty() && !type.starts_with("image/") && type != "application/octet-stream") {
    return Bad("the data URL is of type " + std::string(type.substr(0, 60)) +
               ": send image/png, image/jpeg or image/webp");
  }
  const std::string_view text = url.substr(comma + 1);
  if (text.size() / 4 > policy.max_bytes / 3 + 1) return TooLarge(policy.max_bytes);
  return DecodeBase64(text);
}

/// Characters written %41.
std::string Unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr == text.data() + i + 3) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Result<std::string> ReadLocal(const std::string& url, const MediaPolicy& policy) {
  if (policy.local_path.empty()) {
    return Bad("local files are not allowed: start the server with --allowed-local-media-path, or send a data URL");
  }
  std::error_code error;
  const std::filesystem::path root = std::filesystem::canonical(policy.local_path, error);
  if (error) return Status::Failed("--allowed-local-media-path '" + policy.local_path + "' is not there");
  // O_NONBLOCK: a named pipe must not hold the thread. The file's place is asked of the kernel once it is open, so that
  // a link that changes meanwhile cannot lead outside.
  const int fd = ::open(Unescape(url.substr(7)).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const Status refused = Bad("the file of " + Short(url) + " cannot be read, or is not under the allowed path");
  if (fd < 0) return refused;
  struct stat info{};
  std::array<char, 4096> place{};
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), place.data(), place.size());
  const std::filesystem::path real(length > 0 ? std::string(place.data(), static_cast<size_t>(length)) : "");
  const auto [at, ignored] = std::mismatch(root.begin(), root.end(), real.begin(), real.end());
  Result<std::string> out = refused;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && at == root.end()) {
    if (static_cast<uint64_t>(info.st_size) > policy.max_bytes) {
      out = TooLarge(policy.max_bytes);
    } else {
      std::string bytes(static_cast<size_t>(info.st_size), '\0');
      size_t got = 0;
      ssize_t n = 0;
      while (got < bytes.size() && (n = ::read(fd, bytes.data() + got, bytes.size() - got)) > 0)
        got += static_cast<size_t>(n);
      if (got == bytes.size()) out = std::move(bytes);
    }
  }
  ::close(fd);
  return out;
}

}  // namespace

Result<std::string> DecodeBase64(std::string_view text) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  static const std::array<int8_t, 256> kValues = [] {
    std::array<int8_t, 256> values;
    values.fill(-1);
    for (size_t i = 0; i < kLetters.size(); ++i)
      values[static_cast<unsigned char>(kLetters[i])] = static_cast<int8_t>(i);
    return values;
  }();
  const Status bad =
      Bad("the image's base64 text is damaged: it has letters that do not belong there or an incomplete end");
  if (text.size() % 4 != 0) return bad;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool pad = i >= text.size() - padding;
    const int8_t value = pad ? int8_t{0} : kValues[static_cast<unsigned char>(text[i])];
    if (value < 0) return bad;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) out += static_cast<char>(bits >> shift & 255);
    bits = 0;
  }
  out.resize(out.size() - padding);
  return out;
}

Result<Url> ParseUrl(const std::string& text) {
  Url url;
  const Status bad = Bad("'" + Short(text) + "' is not an http(s) URL");
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    url.tls = true;
    url.port = 443;
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else {
    return bad;
  }
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '\\' || c == 0x7F) return bad;  // would end the request's line
  }
  const size_t end = rest.find_first_of("/?#");
  std::string_view authority = rest.substr(0, end);
  if (end != std::string_view::npos) {
    url.target = rest.substr(end);
    url.target = url.target.substr(0, url.target.find('#'));
    if (url.target.empty() || url.target.front() != '/') url.target.insert(0, "/");
  }
  if (authority.find('@') != std::string_view::npos) return Bad("URLs with a user name are not fetched");
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return bad;
    url.host = authority.substr(1, close - 1);
    port = authority.substr(close + 1);
  } else {
    const size_t colon = authority.find(':');
    url.host = authority.substr(0, colon);
    if (colon != std::string_view::npos) port = authority.substr(colon);
  }
  if (url.host.empty()) return bad;
  if (!port.empty()) {
    unsigned number = 0;
    const auto [stop, error] = std::from_chars(port.data() + 1, port.data() + port.size(), number);
    if (port.front() != ':' || port.size() < 2 || error != std::errc() || stop != port.data() + port.size() ||
        number == 0 || number > 65535) {
      return bad;
    }
    url.port = static_cast<uint16_t>(number);
  }
  std::transform(url.host.begin(), url.host.end(), url.host.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return url;
}

Result<std::string> LoadImage(const std::string& url, const MediaPolicy& policy) {
  if (url.starts_with("data:")) {
    FLUVIAL_ASSIGN_OR_RETURN(std::string bytes, DecodeDataUrl(url, policy));
    if (bytes.empty()) return Bad("the image has 0 bytes: send an image");
    if (bytes.size() > policy.max_bytes) return TooLarge(policy.max_bytes);
    return bytes;
  }
  if (url.starts_with("file://")) return ReadLocal(url, policy);
  if (url.starts_with("http://") || url.starts_with("https://")) {
    if (!policy.fetch) {
      return Bad(
          "images are not fetched from the network: start the server with --allow-media-fetch, or send a data URL");
    }
    return FetchUrl(url, policy);
  }
  return Bad("'" + Short(url) + "' is no image URL: send data:image/...;base64,..., https:// or file://");
}

}  // namespace fluvial::server
