// SPDX-License-Identifier: Apache-2.0
// Images on their way from messages to what decodes them.
#include <gtest/gtest.h>

#include "server/server_testkit.h"

namespace fluvial::server::testing {
namespace {

constexpr const char* kTemplate = R"({%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}
{%- if part.type == 'image_url' %}[IMAGE]{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}
{%- endfor %})";

/// An image's text is its bytes; "broken" cannot be decoded.
class TextImages final : public ImageInput {
 public:
  Status Attach(const std::vector<std::string>& images, std::string* rendered, Request*) const override {
    for (const std::string& image : images) {
      if (image == "broken") return Status::InvalidArgument("the image cannot be decoded: send PNG, JPEG or WebP");
      const size_t at = rendered->find("[IMAGE]");
      if (at == std::string::npos) return Status::InvalidArgument("there is no place for an image");
      rendered->replace(at, 7, "<" + image + ">");
    }
    return Status::Ok();
  }
};

class ImageChatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "fluvial_images_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
      std::filesystem::copy_file(std::filesystem::path(DemoModel()) / file, folder_ / file);
    }
    std::ofstream(folder_ / "chat_template.jinja") << kTemplate;
    auto engine = std::make_unique<FakeEngine>();
    engine->next = [this](const Request& request, int64_t) {
      const std::lock_guard lock(mutex_);
      prompt_ = request.prompt;
      return kEos;
    };
    ServerOptions options = TestOptions();
    options.api.media.max_images = 3;
    options.api.media.max_bytes = 100;
    options.api.media.fetch = true;
    options.api.media.timeout = std::chrono::milliseconds(500);
    auto model = ServedModel::Load(folder_, {"demo"}, engine->info(), true);
    ASSERT_TRUE(model.ok());
    model->images = std::make_shared<TextImages>();
    tokenizer_ = std::make_unique<text::Tokenizer>(model->tokenizer);
    auto server = Server::Start(std::move(engine), std::move(model).value(), options);
    ASSERT_TRUE(server.ok());
    server_ = std::move(server).value();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  static Json Image(const std::string& url) {
    Json part;
    part["type"] = "image_url";
    part["image_url"]["url"] = url;
    part["image_url"]["detail"] = "low";
    return part;
  }
  static Json Text(const std::string& text) { return Json{{"type", "text"}, {"text", text}}; }
  Answer Chat(const std::vector<Json>& parts) {
    Json body;
    body["messages"] = Json::array({{{"role", "user"}, {"content", parts}}});
    return PostJson(server_->port(), "/v1/chat/completions", body);
  }
  std::string Prompt() {
    const std::lock_guard lock(mutex_);
    return tokenizer_->Decode(prompt_, {.skip_special_tokens = false});
  }

  std::filesystem::path folder_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<Server> server_;
  std::mutex mutex_;
  std::vector<int32_t> prompt_;
};

TEST_F(ImageChatTest, ImagesArriveInOrder) {
  const Answer answer =
      Chat({Text("a"), Image("data:image/png;base64,b25l"), Text("b"), Image("data:image/png;base64,dHdv")});
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(Prompt(), "<|im_start|>user\na<one>b<two><|im_end|>\n");
  Json bare = Image("");
  bare["image_url"] = "data:image/png;base64,b25l";
  EXPECT_EQ(Chat({bare}).status, 200);
  EXPECT_EQ(Prompt(), "<|im_start|>user\n<one><|im_end|>\n");
}

TEST_F(ImageChatTest, BadImagesAreBadRequests) {
  struct Case {
    Json part;
    const char* says;
  };
  Json empty = Image("");
  empty["image_url"].erase("url");
  const std::vector<Case> cases = {
      {Image("data:image/png;base64,YnJva2Vu"), "cannot be decoded"},
      {Image("data:image/png;base64,!!!!"), "base64"},
      {Image("data:image/png;base64,"), "0 bytes"},
      {Image("data:text/plain;base64,b25l"), "text/plain"},
      {Image("data:image/png;base64," + std::string(200, 'A')), "larger than 100"},
      {Image("file:///etc/passwd"), "--allowed-local-media-path"},
      {Image("http://127.0.0.1:1/x.png"), "not a public address"},
      {Image("http://169.254.169.254/latest/meta-data"), "not a public address"},
      {Image("http://name.invalid/x.png"), "name.invalid"},
      {Image("x.png"), "no image URL"},
      {empty, "needs \"image_url\""},
      {Json{{"type", "image_embeds"}, {"image_embeds", "x"}}, "image_embeds"},
      {Json{{"type", "video_url"}, {"video_url", "x"}}, "videos"},
      {Json{{"type", "input_audio"}}, "input_audio"},
  };
  for (const Case& c : cases) {
    const Answer answer = Chat({Text("a"), c.part});
    EXPECT_EQ(answer.status, 400) << Quote(c.part) << answer.body;
    EXPECT_NE(answer.error().find(c.says), std::string::npos) << Quote(c.part) << " -> " << answer.error();
    EXPECT_EQ(answer.json()["error"]["param"], "messages");
  }
  const Json one = Image("data:image/png;base64,b25l");
  EXPECT_EQ(Chat({one, one, one}).status, 200);
  const Answer many = Chat({one, one, one, one});
  EXPECT_EQ(many.status, 400);
  EXPECT_NE(many.error().find("more than 3 images"), std::string::npos);
}

}  // namespace
}  // namespace fluvial::server::testing
