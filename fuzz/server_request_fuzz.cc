// SPDX-License-Identifier: Apache-2.0
// Any bytes as the body of a request: an error with a message, or fields that the engine's types can hold. The same
// bytes as an image's URL.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/api.h"

namespace server = fluvial::server;

namespace {

const server::ServedModel& Model() {
  static const server::ServedModel model = [] {
    fluvial::ModelInfo info;
    info.vocab_size = 1024;
    info.max_model_len = 4096;
    auto loaded =
        server::ServedModel::Load(std::string(FLUVIAL_SOURCE_DIR) + "/models/demo-random-gdn", {"demo"}, info, true);
    FLUVIAL_CHECK(loaded.ok());
    return std::move(loaded).value();
  }();
  return model;
}

void CheckError(const server::ApiError& error) {
  FLUVIAL_CHECK(error.status >= 400 && error.status < 500 && !error.message.empty());
  FLUVIAL_CHECK(server::Json::parse(server::ErrorJson(error), nullptr, false).is_object());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  server::MediaPolicy policy;
  policy.max_bytes = 1 << 16;
  (void)server::LoadImage(std::string(text), policy).ok();
  (void)server::ParseUrl(std::string(text)).ok();

  server::Json body;
  if (const auto error = server::ParseBody(text, &body)) {
    CheckError(*error);
    return 0;
  }
  server::Fields fields(body);
  server::GenerationRequest request;
  if (const auto error = server::ReadGeneration(Model(), {}, &fields, &request)) CheckError(*error);
  fluvial::text::ChatRequest chat;
  std::string tools;
  std::vector<std::string> images;
  server::ReadChat(Model(), 4, &fields, &chat, &tools, &images);
  fields.RefuseUnknown();
  if (!fields.ok()) {
    CheckError(*fields.error());
    return 0;
  }
  const auto prompt = server::RenderChat(Model(), chat);
  if (!prompt.ok()) FLUVIAL_CHECK(!prompt.status().message().empty());
  return 0;
}
