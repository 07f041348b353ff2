// SPDX-License-Identifier: Apache-2.0
#include "server/media.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "server/server_testkit.h"

namespace fluvial::server::testing {
namespace {

std::string Why(const Result<std::string>& result) { return result.ok() ? "ok" : result.status().message(); }

TEST(Base64, DecodesAndRefuses) {
  EXPECT_EQ(*DecodeBase64(""), "");
  EXPECT_EQ(*DecodeBase64("Zg=="), "f");
  EXPECT_EQ(*DecodeBase64("Zm8="), "fo");
  EXPECT_EQ(*DecodeBase64("Zm9v"), "foo");
  EXPECT_EQ(*DecodeBase64("AP+/"), std::string("\x00\xFF\xBF", 3));
  for (const char* bad : {"Z", "Zg", "Zg=", "Z===", "====", "Zm9v\n", "Zm 9", "Zm9-", "=m9v", "Zg==Zg=="}) {
    EXPECT_FALSE(DecodeBase64(bad).ok()) << bad;
  }
}

TEST(LoadImage, DataUrls) {
  MediaPolicy policy;
  EXPECT_EQ(*LoadImage("data:image/png;base64,Zm9v", policy), "foo");
  EXPECT_EQ(*LoadImage("data:;base64,Zm9v", policy), "foo");
  EXPECT_EQ(*LoadImage("data:image/jpeg;name=x;base64,Zm9v", policy), "foo");
  EXPECT_NE(Why(LoadImage("data:image/png;base64,", policy)).find("0 bytes"), std::string::npos);
  EXPECT_NE(Why(LoadImage("data:text/html;base64,Zm9v", policy)).find("text/html"), std::string::npos);
  EXPECT_NE(Why(LoadImage("data:image/png,foo", policy)).find("base64"), std::string::npos);
  EXPECT_NE(Why(LoadImage("data:image/png;base64", policy)).find("base64"), std::string::npos);
  EXPECT_NE(Why(LoadImage("data:image/png;base64,Zm9", policy)).find("damaged"), std::string::npos);
  policy.max_bytes = 5;
  EXPECT_EQ(Why(LoadImage("data:image/png;base64,Zm9vYmE=", policy)), "ok");
  EXPECT_NE(Why(LoadImage("data:image/png;base64,Zm9vYmFy", policy)).find("larger than 5"), std::string::npos);
  EXPECT_NE(Why(LoadImage("data:image/png;base64," + std::string(4000, 'A'), policy)).find("larger"),
            std::string::npos);
}

TEST(LoadImage, OtherSchemesAreRefused) {
  for (const char* url : {"", "ftp://x/y", "javascript:1", "/etc/passwd", "image.png", "gopher://x"}) {
    EXPECT_FALSE(LoadImage(url, MediaPolicy{}).ok()) << url;
  }
  EXPECT_NE(Why(LoadImage("http://example.com/x.png", MediaPolicy{})).find("--allow-media-fetch"), std::string::npos);
  EXPECT_NE(Why(LoadImage("file:///etc/passwd", MediaPolicy{})).find("--allowed-local-media-path"), std::string::npos);
}

TEST(LoadImage, LocalFilesStayUnderTheirFolder) {
  std::string name = std::filesystem::temp_directory_path() / "fluvial_media_XXXXXX";
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const std::filesystem::path folder = name;
  std::filesystem::create_directories(folder / "open" / "in");
  std::ofstream(folder / "open" / "in" / "a b.png") << "picture";
  std::ofstream(folder / "secret.png") << "secret";
  std::filesystem::create_directories(folder / "open2");
  std::ofstream(folder / "open2" / "c.png") << "neighbour";
  std::filesystem::create_symlink(folder / "secret.png", folder / "open" / "link.png");
  ASSERT_EQ(mkfifo((folder / "open" / "pipe").c_str(), 0600), 0);
  MediaPolicy policy;
  policy.local_path = folder / "open";
  const auto at = [&](const std::string& path) { return LoadImage("file://" + folder.string() + path, policy); };
  EXPECT_EQ(Why(at("/open/in/a%20b.png")), "ok");
  EXPECT_EQ(*at("/open/in/a%20b.png"), "picture");
  EXPECT_EQ(*at("/open/in/../in/a%20b.png"), "picture");
  for (const char* path : {"/secret.png", "/open/../secret.png", "/open/%2e%2e/secret.png", "/open/link.png",
                           "/open2/c.png", "/open", "/open/in", "/open/none.png", "/open/pipe", ""}) {
    EXPECT_FALSE(at(path).ok()) << path;
  }
  policy.max_bytes = 3;
  EXPECT_NE(Why(at("/open/in/a%20b.png")).find("larger than 3"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(ParseUrl, TakesApart) {
  const Url a = *ParseUrl("https://Example.COM/p/q?r=1#frag");
  EXPECT_TRUE(a.tls);
  EXPECT_EQ(a.host, "example.com");
  EXPECT_EQ(a.port, 443);
  EXPECT_EQ(a.target, "/p/q?r=1");
  const Url b = *ParseUrl("http://[2001:db8::1]:8080?x");
  EXPECT_EQ(b.host, "2001:db8::1");
  EXPECT_EQ(b.port, 8080);
  EXPECT_EQ(b.target, "/?x");
  EXPECT_EQ(ParseUrl("http://h")->target, "/");
  for (const char* bad : {"http://", "http:///x", "http://h:0/", "http://h:99999/", "http://h:x/", "http://h:/",
                          "http://a b/", "http://h/\r\nX: y", "http://user@h/", "http://user:p@h/", "http://[::1",
                          "ftp://h/", "//h/", "http://h\\@evil/"}) {
    EXPECT_FALSE(ParseUrl(bad).ok()) << bad;
  }
}

TEST(IsPublicAddress, KnowsTheSpecialBlocks) {
  for (const char* address :
       {"8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "192.1.0.1", "2606:4700::1111", "2a00:1450::1"}) {
    EXPECT_TRUE(IsPublicAddress(address)) << address;
  }
  for (const char* address : {"0.0.0.0",
                              "10.1.2.3",
                              "100.64.0.1",
                              "127.0.0.1",
                              "127.255.255.255",
                              "169.254.169.254",
                              "172.16.0.1",
                              "172.31.255.255",
                              "192.168.1.1",
                              "192.0.2.1",
                              "198.18.0.1",
                              "198.51.100.1",
                              "203.0.113.9",
                              "224.0.0.1",
                              "240.0.0.1",
                              "255.255.255.255",
                              "::",
                              "::1",
                              "fe80::1",
                              "fc00::1",
                              "fd12::1",
                              "ff02::1",
                              "::ffff:127.0.0.1",
                              "::ffff:10.0.0.1",
                              "64:ff9b::7f00:1",
                              "2002:7f00:1::",
                              "2001:db8::1",
                              "2001::1",
                              "::127.0.0.1",
                              "nonsense",
                              ""}) {
    EXPECT_FALSE(IsPublicAddress(address)) << address;
  }
}

/// A server of fixed answers on this machine.
class FetchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpHooks hooks;
    hooks.check = [](const HttpRequest&) { return std::nullopt; };
    hooks.refuse = [](int status, std::string) { return HttpResponse{.status = status, .body = ""}; };
    hooks.handle = [this](const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
      const auto found = answers_.find(request.path);
      if (found == answers_.end()) {
        held_.push_back(exchange);  // never answered
      } else {
        exchange->Send(found->second);
      }
    };
    HttpOptions options;
    options.port = 0;
    auto listener = HttpListener::Start(options, hooks);
    ASSERT_TRUE(listener.ok());
    listener_ = std::move(listener).value();
    base_ = "http://127.0.0.1:" + std::to_string(listener_->port());
    policy_.fetch = true;
    policy_.private_addresses = true;
    policy_.timeout = std::chrono::milliseconds(3000);
  }
  void Answer(const std::string& path, int status, const std::string& body, const std::string& location = "") {
    HttpResponse response{.status = status, .body = body, .content_type = "image/png"};
    if (!location.empty()) response.headers.emplace_back("Location", location);
    answers_[path] = response;
  }

  std::map<std::string, HttpResponse> answers_;
  std::vector<std::shared_ptr<Exchange>> held_;
  std::unique_ptr<HttpListener> listener_;
  std::string base_;
  MediaPolicy policy_;
};

TEST_F(FetchTest, FetchesWithinBounds) {
  Answer("/a.png", 200, "picture");
  Answer("/gone", 404, "");
  Answer("/big", 200, std::string(1000, 'x'));
  EXPECT_EQ(Why(LoadImage(base_ + "/a.png", policy_)), "ok");
  EXPECT_EQ(*LoadImage(base_ + "/a.png", policy_), "picture");
  EXPECT_NE(Why(LoadImage(base_ + "/gone", policy_)).find("404"), std::string::npos);
  policy_.max_bytes = 100;
  EXPECT_NE(Why(LoadImage(base_ + "/big", policy_)).find("larger than 100"), std::string::npos);
  policy_.timeout = std::chrono::milliseconds(100);
  EXPECT_NE(Why(LoadImage(base_ + "/never", policy_)), "ok");
  EXPECT_NE(Why(LoadImage("https" + base_.substr(4) + "/a.png", policy_)), "ok");
}

TEST_F(FetchTest, PrivateAddressesAreRefusedUnlessAllowed) {
  Answer("/a.png", 200, "picture");
  policy_.private_addresses = false;
  for (const std::string host : {"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"}) {
    const std::string why =
        Why(LoadImage("http://" + host + ":" + std::to_string(listener_->port()) + "/a.png", policy_));
    EXPECT_NE(why.find("not a public address"), std::string::npos) << host << ": " << why;
  }
}

TEST_F(FetchTest, RedirectsAreCountedAndCheckedAnew) {
  Answer("/a.png", 200, "picture");
  Answer("/one", 302, "", "/a.png");
  Answer("/dir/two", 301, "", "../one");
  Answer("/dir/../one", 302, "", base_ + "/a.png");
  Answer("/loop", 307, "", "/loop");
  Answer("/nowhere", 302, "");
  Answer("/file", 302, "", "file:///etc/passwd");
  Answer("/other", 302, "", "http://other.invalid/a.png");
  EXPECT_EQ(*LoadImage(base_ + "/one", policy_), "picture");
  EXPECT_EQ(Why(LoadImage(base_ + "/dir/two", policy_)), "ok");
  EXPECT_NE(Why(LoadImage(base_ + "/loop", policy_)).find("redirects more than 3"), std::string::npos);
  EXPECT_NE(Why(LoadImage(base_ + "/nowhere", policy_)).find("nowhere"), std::string::npos);
  EXPECT_FALSE(LoadImage(base_ + "/file", policy_).ok());
  policy_.domains = {"127.0.0.1"};
  EXPECT_EQ(Why(LoadImage(base_ + "/a.png", policy_)), "ok");
  EXPECT_NE(Why(LoadImage(base_ + "/other", policy_)).find("other.invalid"), std::string::npos);
}

}  // namespace
}  // namespace fluvial::server::testing
