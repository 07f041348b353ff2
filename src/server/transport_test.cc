// SPDX-License-Identifier: Apache-2.0
// What clients do that they should not, and what happens to the others: disconnects, slow readers, broken HTTP, floods,
// a failing engine, the end of the server.
#include <gtest/gtest.h>

#include "server/server_testkit.h"

namespace fluvial::server::testing {
namespace {

const std::string kEndless = R"({"prompt": "x", "max_tokens": 100000000, "stream": true})";
const std::string kEndlessWhole = R"({"prompt": "x", "max_tokens": 100000000})";
const std::string kShort = R"({"prompt": "x", "max_tokens": 3})";

std::unique_ptr<FakeEngine> Slow(int microseconds = 500) {
  auto engine = std::make_unique<FakeEngine>();
  engine->step_time = std::chrono::microseconds(microseconds);
  return engine;
}

TEST(Transport, DisconnectsFreeTheirPlaces) {
  const auto server = StartServer(Slow());
  ASSERT_NE(server, nullptr);
  for (const std::string& body : {kEndless, kEndlessWhole}) {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 100; ++i) {
      clients.push_back(std::make_unique<Client>(server->port()));
      clients.back()->Post("/v1/completions", body);
    }
    EXPECT_TRUE(Soon([&] { return server->active() == 100; })) << server->active();
    if (body == kEndless) {
      for (const auto& client : clients) EXPECT_TRUE(client->ReadUntil("data: "));
    }
    clients.clear();
    EXPECT_TRUE(Soon([&] { return server->active() == 0; }, std::chrono::seconds(2))) << server->active();
  }
  EXPECT_EQ(Post(server->port(), "/v1/completions", kShort).status, 200);
  const std::string page = Get(server->port(), "/metrics").body;
  EXPECT_NE(page.find("fluvial:client_disconnects_total{model_name=\"demo\",engine=\"0\"} 200"), std::string::npos);
  EXPECT_NE(page.find("status=\"499\"} 200"), std::string::npos);
}

TEST(Transport, SlowReadersAreCutOffAndOthersAreNot) {
  ServerOptions options = TestOptions();
  options.http.max_pending_bytes = 64 << 10;
  const auto server = StartServer(std::make_unique<FakeEngine>(), options);
  ASSERT_NE(server, nullptr);
  Client slow(server->port(), 4096);
  slow.Post("/v1/completions", kEndless);
  EXPECT_EQ(Post(server->port(), "/v1/completions", kShort).status, 200);
  EXPECT_TRUE(Soon([&] {
    const std::string page = Get(server->port(), "/metrics").body;
    return page.find("fluvial:client_disconnects_total{model_name=\"demo\",engine=\"0\"} 1\n") != std::string::npos;
  })) << "the stream that nobody reads goes on";
  EXPECT_TRUE(Soon([&] { return server->active() == 0; }));
  EXPECT_TRUE(slow.ReadToEnd());
}

TEST(Transport, AReaderThatTakesNothingIsCutOffByTime) {
  ServerOptions options = TestOptions();
  options.http.write_timeout = std::chrono::milliseconds(300);
  options.http.max_pending_bytes = uint64_t{1} << 30;
  const auto server = StartServer(std::make_unique<FakeEngine>(), options);
  ASSERT_NE(server, nullptr);
  Client slow(server->port(), 4096);
  slow.Post("/v1/completions", kEndless);
  EXPECT_TRUE(Soon([&] { return server->active() == 1; }));
  EXPECT_TRUE(Soon([&] { return server->active() == 0; }));
}

TEST(Transport, BrokenHttpIsAnsweredAndClosed) {
  ServerOptions options = TestOptions();
  options.http.max_body_bytes = 1000;
  options.http.max_header_bytes = 2000;
  const auto server = StartServer(std::make_unique<FakeEngine>(), options);
  ASSERT_NE(server, nullptr);
  struct Case {
    std::string bytes;
    int status;
  };
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
  const Case cases[] = {
      {"GARBAGE\r\n\r\n", 400},
      {"GET /health HTTP/9.9\r\n\r\n", 400},
      {std::string("\0\1\2\3\r\n\r\n", 8), 400},
      {"GET /health HTTP/1.1\r\nno colon\r\n\r\n", 400},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a client that speaks TLS\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nX: " + std::string(3000, 'x') + "\r\n\r\n", 431},
      {post + "Content-Length: 5000\r\n\r\n" + std::string(5000, 'x'), 413},
      {post + "Content-Length: -1\r\n\r\n", 400},
      {post + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x') + "\r\n0\r\n\r\n", 413},
      {"POST /nothing HTTP/1.1\r\nContent-Length: 100\r\n\r\n", 404},
      {"DELETE /v1/completions HTTP/1.1\r\n\r\n", 405},
  };
  for (const Case& c : cases) {
    Client client(server->port());
    client.Send(c.bytes);
    const Answer answer = client.Read();
    EXPECT_EQ(answer.status, c.status) << c.bytes.substr(0, 60);
    EXPECT_TRUE(answer.json().contains("error"));
    if (answer.headers.contains("connection") && answer.headers.at("connection") == "close") {
      EXPECT_TRUE(client.ReadToEnd());
    }
  }
  EXPECT_EQ(Get(server->port(), "/health").status, 200);
}

TEST(Transport, BodiesTogetherAreBounded) {
  ServerOptions options = TestOptions();
  options.http.max_all_body_bytes = 10'000;
  const auto server = StartServer(Slow(), options);
  ASSERT_NE(server, nullptr);
  const std::string big = "POST /v1/completions HTTP/1.1\r\nContent-Length: 9000\r\n\r\n";
  auto first = std::make_unique<Client>(server->port());
  first->Send(big + "{");
  const auto status = [&] {
    Client second(server->port());
    second.Send(big + std::string(9000, 'x'));
    return second.Read().status;
  };
  EXPECT_TRUE(Soon([&] { return status() == 503; })) << "there is room for one";
  EXPECT_EQ(Post(server->port(), "/v1/completions", kShort).status, 200);
  first.reset();
  EXPECT_TRUE(Soon([&] { return status() == 400; })) << "its room is given back";
  for (int i = 0; i < 5; ++i) EXPECT_EQ(status(), 400);
}

TEST(Transport, BrokenBodiesAreAnsweredAndTheConnectionGoesOn) {
  const auto server = StartServer(std::make_unique<FakeEngine>());
  ASSERT_NE(server, nullptr);
  Client client(server->port());
  for (const std::string& body :
       {std::string("{"), std::string(), std::string("[]"), std::string("\xFF\xFE\x00", 3),
        std::string("{\"prompt\": \"\xC3\"}"), "{\"prompt\":" + std::string(100000, '[') + "}",
        std::string("{\"prompt\":\"a\",\"prompt\":\"b\"}"), std::string("{\"prompt\": 1e99999}"),
        std::string("nonsense")}) {
    client.Post("/v1/completions", body);
    const Answer answer = client.Read();
    EXPECT_EQ(answer.status, 400) << body.substr(0, 40);
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
  }
  client.Post("/v1/completions", kShort);
  EXPECT_EQ(client.Read().status, 200);
}

TEST(Transport, HttpIsSpokenInFull) {
  const auto server = StartServer(std::make_unique<FakeEngine>());
  ASSERT_NE(server, nullptr);
  Client client(server->port());
  // Pipelined: answers in order.
  client.Send("GET /version HTTP/1.1\r\n\r\nGET /load HTTP/1.1\r\n\r\nGET /version?x=1 HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(client.Read().json().contains("version"));
  EXPECT_TRUE(client.Read().json().contains("server_load"));
  EXPECT_TRUE(client.Read().json().contains("version"));
  // A request that comes while the answer before it is still being drawn.
  client.Post("/v1/completions", kShort);
  client.Get("/version");
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_TRUE(client.Read().json().contains("version"));
  // HEAD has no body.
  client.Send("HEAD /version HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.Read(true).status, 200);
  client.Get("/version");
  EXPECT_TRUE(client.Read().json().contains("version"));
  // Byte by byte.
  const std::string get = "GET /version HTTP/1.1\r\n\r\n";
  for (const char c : get) client.Send(std::string(1, c));
  EXPECT_TRUE(client.Read().json().contains("version"));
  // The body is awaited.
  client.Send("POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: " +
              std::to_string(kShort.size()) + "\r\n\r\n");
  EXPECT_TRUE(client.ReadUntil("100 Continue"));
  client.Send(kShort);
  EXPECT_EQ(client.Read().status, 200);
  // Chunked.
  client.Send(
      "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{\"prompt\"\r\n5\r\n:\"x\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);

  // HTTP/1.0 knows no chunks: the end of the connection is the end of the stream.
  Client old(server->port());
  const std::string body = R"({"prompt": "x", "max_tokens": 3, "stream": true})";
  old.Send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const Answer answer = old.Read();
  EXPECT_FALSE(answer.headers.contains("transfer-encoding"));
  EXPECT_EQ(answer.events().back(), "[DONE]");
}

TEST(Transport, RequestsThatDoNotArriveTimeOut) {
  ServerOptions options = TestOptions();
  options.http.header_timeout = std::chrono::milliseconds(100);
  options.http.body_timeout = std::chrono::milliseconds(100);
  options.http.idle_timeout = std::chrono::milliseconds(200);
  const auto server = StartServer(std::make_unique<FakeEngine>(), options);
  ASSERT_NE(server, nullptr);
  Client head(server->port()), body(server->port()), idle(server->port());
  head.Send("GET /health HT");
  body.Send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(head.Read().status, 408);
  EXPECT_EQ(body.Read().status, 408);
  EXPECT_TRUE(head.ReadToEnd());
  EXPECT_TRUE(body.ReadToEnd());
  EXPECT_TRUE(idle.ReadToEnd());
  EXPECT_EQ(idle.buffer(), "");
}

TEST(Transport, KeysAreAskedFor) {
  ServerOptions options = TestOptions();
  options.api.keys = {"first-key", "second"};
  const auto server = StartServer(std::make_unique<FakeEngine>(), options);
  ASSERT_NE(server, nullptr);
  for (const char* header :
       {"", "Authorization: Bearer wrong\r\n", "Authorization: Bearer \r\n", "Authorization: second\r\n",
        "Authorization: Bearer first-key2\r\n", "Authorization: Basic second\r\n"}) {
    const Answer answer = Post(server->port(), "/v1/completions", kShort, header);
    EXPECT_EQ(answer.status, 401) << header;
    EXPECT_EQ(answer.json()["error"]["code"], "invalid_api_key");
    EXPECT_EQ(answer.json()["error"]["type"], "authentication_error");
  }
  EXPECT_EQ(Post(server->port(), "/tokenize", kShort).status, 401);
  EXPECT_EQ(Get(server->port(), "/v1/models").status, 401);
  EXPECT_EQ(Get(server->port(), "/health").status, 200);
  for (const char* header : {"Authorization: Bearer first-key\r\n", "Authorization: Bearer second\r\n"}) {
    EXPECT_EQ(Post(server->port(), "/v1/completions", kShort, header).status, 200);
  }
}

TEST(Transport, FloodsAreRefusedNotQueuedForEver) {
  ServerOptions options = TestOptions();
  options.max_requests = 4;
  options.http.max_connections = 8;
  const auto server = StartServer(Slow(), options);
  ASSERT_NE(server, nullptr);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->Post("/v1/completions", kEndless);
  }
  EXPECT_TRUE(Soon([&] { return server->active() == 4; }));
  const Answer full = Post(server->port(), "/v1/completions", kShort);
  EXPECT_EQ(full.status, 503);
  EXPECT_NE(full.error().find("--max-requests"), std::string::npos);
  for (int i = 0; i < 4; ++i) clients.push_back(std::make_unique<Client>(server->port()));
  EXPECT_TRUE(Soon([&] { return Get(server->port(), "/health").status == 503; }));
  clients.clear();
  EXPECT_TRUE(Soon([&] { return Post(server->port(), "/v1/completions", kShort).status == 200; }));
}

TEST(Transport, RequestsHaveADeadline) {
  ServerOptions options = TestOptions();
  options.api.request_timeout = std::chrono::milliseconds(150);
  const auto server = StartServer(Slow(), options);
  ASSERT_NE(server, nullptr);
  const Answer whole = Post(server->port(), "/v1/completions", kEndlessWhole);
  EXPECT_EQ(whole.status, 504);
  EXPECT_EQ(whole.json()["error"]["type"], "timeout_error");
  const Answer stream = Post(server->port(), "/v1/completions", kEndless);
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(Join(stream).error.find("--request-timeout"), std::string::npos);
  EXPECT_EQ(server->active(), 0);
}

TEST(Transport, ANanEndsItsRequestAlone) {
  auto engine = Slow();
  engine->next = [](const Request& r, int64_t n) {
    return r.sampling.seed == 666 && n == 2 ? FakeEngine::kNotFinite : 300;
  };
  const auto server = StartServer(std::move(engine));
  ASSERT_NE(server, nullptr);
  std::vector<std::unique_ptr<Client>> good;
  for (int i = 0; i < 3; ++i) {
    good.push_back(std::make_unique<Client>(server->port()));
    good.back()->Post("/v1/completions", R"({"prompt": "x", "max_tokens": 20, "seed": 1})");
  }
  const Answer bad = Post(server->port(), "/v1/completions", R"({"prompt": "x", "max_tokens": 20, "seed": 666})");
  EXPECT_EQ(bad.status, 500);
  EXPECT_NE(bad.error().find("not finite"), std::string::npos);
  const Answer stream = Post(server->port(), "/v1/completions",
                             R"({"prompt": "x", "max_tokens": 20, "seed": 665, "n": 2, "stream": true})");
  EXPECT_NE(Join(stream).error.find("not finite"), std::string::npos);
  for (const auto& client : good) EXPECT_EQ(client->Read().json()["usage"]["completion_tokens"], 20);
  EXPECT_TRUE(Soon([&] { return server->active() == 0; })) << "the other choice of the failed request is cancelled";
}

TEST(Transport, ABrokenEngineIsSaidAndSeen) {
  auto engine = Slow();
  engine->next = [](const Request& r, int64_t n) {
    return r.sampling.seed == 666 && n == 2 ? FakeEngine::kBroken : 300;
  };
  const auto server = StartServer(std::move(engine));
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(Get(server->port(), "/health").status, 200);
  Client other(server->port());
  other.Post("/v1/completions", kEndless);
  EXPECT_TRUE(other.ReadUntil("data: "));
  const Answer broken = Post(server->port(), "/v1/completions", R"({"prompt": "x", "max_tokens": 20, "seed": 666})");
  EXPECT_EQ(broken.status, 500);
  EXPECT_NE(broken.error().find("fell off the bus"), std::string::npos);
  EXPECT_NE(Join(other.Read()).error.find("fell off the bus"), std::string::npos);
  EXPECT_EQ(Get(server->port(), "/health").status, 503);
  EXPECT_EQ(Post(server->port(), "/v1/completions", kShort).status, 500);
  EXPECT_FALSE(server->alive());
}

TEST(Transport, DrainLetsAnswersEndAndTakesNoNewOnes) {
  const auto server = StartServer(Slow(2000));
  ASSERT_NE(server, nullptr);
  Client busy(server->port()), idle(server->port());
  idle.Get("/health");
  EXPECT_EQ(idle.Read().status, 200);
  busy.Post("/v1/completions", R"({"prompt": "x", "max_tokens": 50, "stream": true})");
  EXPECT_TRUE(busy.ReadUntil("data: "));
  const uint16_t port = server->port();
  std::atomic<bool> clean{false};
  std::thread drain([&] { clean = server->Drain(std::chrono::seconds(20)); });
  EXPECT_TRUE(idle.ReadToEnd()) << "idle connections are closed";
  EXPECT_TRUE(Soon([&] { return !Client(port).connected(); })) << "nothing new is accepted";
  const Streamed streamed = Join(busy.Read());
  EXPECT_EQ(streamed.finish.at(0), "length");
  EXPECT_EQ(streamed.error, "");
  drain.join();
  EXPECT_TRUE(clean.load());
}

TEST(Transport, DrainCancelsWhatDoesNotEnd) {
  const auto server = StartServer(Slow());
  ASSERT_NE(server, nullptr);
  Client busy(server->port());
  busy.Post("/v1/completions", kEndless);
  EXPECT_TRUE(busy.ReadUntil("data: "));
  std::thread reader([&] { EXPECT_NE(Join(busy.Read()).error.find("shutting down"), std::string::npos); });
  EXPECT_FALSE(server->Drain(std::chrono::milliseconds(100)));
  reader.join();
  EXPECT_EQ(server->active(), 0);
}

TEST(Transport, AServerCanEndWithClientsConnected) {
  auto server = StartServer(Slow());
  ASSERT_NE(server, nullptr);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->Post("/v1/completions", i % 2 == 0 ? kEndless : kEndlessWhole);
  }
  EXPECT_TRUE(Soon([&] { return server->active() == 20; }));
  server.reset();
  for (const auto& client : clients) EXPECT_TRUE(client->ReadToEnd());
}

TEST(Transport, PortsInUseAreSaid) {
  const auto server = StartServer(std::make_unique<FakeEngine>());
  ASSERT_NE(server, nullptr);
  HttpOptions options;
  options.port = server->port();
  const auto second = HttpListener::Start(options, HttpHooks{});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("another server"), std::string::npos) << second.status().message();
  options.host = "no.such.host.invalid";
  EXPECT_FALSE(HttpListener::Start(options, HttpHooks{}).ok());
}

}  // namespace
}  // namespace fluvial::server::testing
