// SPDX-License-Identifier: Apache-2.0
// What the tests of this room share: an engine that draws what a test says, and a client of raw sockets that can do
// everything a client should not.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/server.h"

namespace fluvial::server::testing {

using Clock = std::chrono::steady_clock;
constexpr int32_t kEos = 1002;  // <|im_end|> of the demo model

inline std::string DemoModel() { return std::string(FLUVIAL_SOURCE_DIR) + "/models/demo-random-gdn"; }

/// Draws `next(request, n)` as token n of every request, one a step.
class FakeEngine final : public Engine {
 public:
  static constexpr int32_t kNotFinite = -1;  ///< the request ends as one whose logits are not finite
  static constexpr int32_t kBroken = -2;     ///< Step fails

  std::function<int32_t(const Request& request, int64_t n)> next = [](const Request&, int64_t) { return 300; };
  std::chrono::microseconds step_time{0};

  FakeEngine() {
    info_.vocab_size = 1024;
    info_.max_model_len = 4096;
    info_.eos_ids = {kEos};
  }

  const ModelInfo& info() const override { return info_; }
  EngineStats stats() const override {
    EngineStats s;
    s.steps = steps_.load();
    return s;
  }
  std::vector<BackendUse> backends() const override { return {}; }
  Status Check(const Request& r) const override {
    if (r.prompt.empty()) return Status::InvalidArgument("the prompt is empty: give at least one token");
    return Status::Ok();
  }
  Result<std::vector<Completion>> Generate(std::vector<Request>, const TokenCallback&,
                                           const std::atomic<bool>*) override {
    return Status::Failed("not here");
  }
  Result<uint64_t> Submit(Request request, TokenCallback on_token, DoneCallback on_done) override {
    const std::lock_guard lock(mutex_);
    const uint64_t id = ++last_id_;
    mail_.push_back({id, std::move(request), std::move(on_token), std::move(on_done), {}});
    return id;
  }
  void Cancel(uint64_t id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(id);
  }
  Result<bool> Step() override {
    std::set<uint64_t> cancelled;
    {
      const std::lock_guard lock(mutex_);
      for (Running& r : mail_) running_.push_back(std::move(r));
      mail_.clear();
      cancelled.swap(cancelled_);
    }
    if (running_.empty()) return false;
    steps_.fetch_add(1);
    if (step_time.count() > 0) std::this_thread::sleep_for(step_time);
    for (size_t i = 0; i < running_.size();) {
      Running& r = running_[i];
      const bool gone = cancelled.contains(r.id);
      const int32_t token = gone ? 0 : next(r.request, static_cast<int64_t>(r.completion.tokens.size()));
      if (token == kBroken) return Status::Failed("the device fell off the bus");
      if (!gone && !Advance(r, token)) {
        ++i;
        continue;
      }
      if (gone) r.completion.finish_reason = FinishReason::kCancelled;
      Running ended = std::move(r);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      ended.on_done(ended.id, std::move(ended.completion));
    }
    return true;
  }

 private:
  struct Running {
    uint64_t id = 0;
    Request request;
    TokenCallback on_token;
    DoneCallback on_done;
    Completion completion;
  };

  /// True when the request has ended.
  bool Advance(Running& r, int32_t id) {
    Completion& c = r.completion;
    if (id == kNotFinite) {
      c.finish_reason = FinishReason::kError;
      c.status = Status::Failed("the model's logits are not finite");
      return true;
    }
    Token token;
    token.id = id;
    c.tokens.push_back(token);
    const Next said = r.on_token(r.id, token);
    if (id == kEos && !r.request.ignore_eos) {
      c.stop_id = id;
      c.finish_reason = FinishReason::kStop;
      return true;
    }
    if (said == Next::kStop) {
      c.finish_reason = FinishReason::kStop;
      return true;
    }
    if (static_cast<int64_t>(c.tokens.size()) >= r.request.max_tokens) {
      c.finish_reason = FinishReason::kLength;
      return true;
    }
    return false;
  }

  ModelInfo info_;
  std::atomic<int64_t> steps_{0};
  std::vector<Running> running_;
  std::mutex mutex_;  // guards what follows
  std::vector<Running> mail_;
  std::set<uint64_t> cancelled_;
  uint64_t last_id_ = 0;
};

struct Answer {
  int status = 0;                              ///< 0: the connection ended before a whole answer
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< chunks joined

  Json json() const {
    Json parsed = Json::parse(body, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << body;
    return parsed;
  }
  /// Data of the events of a stream, "[DONE]" included.
  std::vector<std::string> events() const {
    std::vector<std::string> out;
    size_t at = 0;
    while (at < body.size()) {
      const size_t end = body.find("\n\n", at);
      EXPECT_NE(end, std::string::npos) << "an event does not end: " << body.substr(at);
      EXPECT_EQ(body.compare(at, 6, "data: "), 0) << body.substr(at, 20);
      if (end == std::string::npos) break;
      out.push_back(body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return out;
  }
  std::string error() const {
    const Json j = json();
    return j.contains("error") ? j["error"]["message"].get<std::string>() : "";
  }
};

class Client {
 public:
  /// `receive_buffer` > 0: the kernel holds no more than about so many bytes for a reader that does not read.
  explicit Client(uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Client() { Close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void Post(const std::string& path, const std::string& body, const std::string& headers = "") {
    Send("POST " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body);
  }
  void Get(const std::string& path, const std::string& headers = "") {
    Send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
  }
  /// Waits for bytes of the stream until `mark` has come. False when it ends first, or after 20 s.
  bool ReadUntil(std::string_view mark) {
    while (buffer_.find(mark) == std::string::npos) {
      if (!Fill()) return false;
    }
    return true;
  }
  /// The peer has closed: reads until then. False after 20 s.
  bool ReadToEnd() {
    while (Fill()) {
    }
    return ended_;
  }
  const std::string& buffer() const { return buffer_; }

  Answer Read(bool head_only = false) {
    Answer answer;
    size_t head_end;
    while ((head_end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill()) return answer;
    }
    const std::string head = buffer_.substr(0, head_end);
    buffer_.erase(0, head_end + 4);
    for (size_t at = head.find("\r\n"); at != std::string::npos;) {
      const size_t next = head.find("\r\n", at + 2);
      const std::string line = head.substr(at + 2, next == std::string::npos ? next : next - at - 2);
      const size_t colon = line.find(':');
      std::string name = line.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      answer.headers[name] = line.substr(std::min(colon + 2, line.size()));
      at = next;
    }
    const int status = std::atoi(head.c_str() + 9);
    if (status == 100) return Read(head_only);
    if (head_only) {
      answer.status = status;
      return answer;
    }
    if (answer.headers.contains("content-length")) {
      const size_t length = std::stoul(answer.headers["content-length"]);
      while (buffer_.size() < length) {
        if (!Fill()) return answer;
      }
      answer.body = buffer_.substr(0, length);
      buffer_.erase(0, length);
    } else if (answer.headers.contains("transfer-encoding")) {
      if (!ReadChunks(&answer.body)) return answer;
    } else {
      ReadToEnd();
      answer.body = std::exchange(buffer_, {});
    }
    answer.status = status;
    return answer;
  }

 private:
  bool Fill() {
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, 20'000) <= 0) return false;
    char bytes[65536];
    const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), 0);
    if (n <= 0) {
      ended_ = true;
      return false;
    }
    buffer_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  bool ReadChunks(std::string* body) {
    while (true) {
      size_t line;
      while ((line = buffer_.find("\r\n")) == std::string::npos) {
        if (!Fill()) return false;
      }
      const size_t size = std::stoul(buffer_.substr(0, line), nullptr, 16);
      while (buffer_.size() < line + 2 + size + 2) {
        if (!Fill()) return false;
      }
      *body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) return true;
    }
  }

  int fd_;
  bool connected_ = false;
  bool ended_ = false;
  std::string buffer_;
};

inline Answer Post(uint16_t port, const std::string& path, const std::string& body, const std::string& headers = "") {
  Client client(port);
  client.Post(path, body, headers);
  return client.Read();
}
inline Answer PostJson(uint16_t port, const std::string& path, const Json& body) {
  return Post(port, path, Dump(body));
}
inline Answer Get(uint16_t port, const std::string& path) {
  Client client(port);
  client.Get(path);
  return client.Read();
}

/// True when `condition` holds within `limit`.
inline bool Soon(const std::function<bool()>& condition, std::chrono::milliseconds limit = std::chrono::seconds(10)) {
  const auto deadline = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline ServerOptions TestOptions() {
  ServerOptions options;
  options.http.port = 0;
  return options;
}

/// A server over `engine` with the demo model's tokenizer and its template, or the one of `folder`.
inline std::unique_ptr<Server> StartServer(std::unique_ptr<Engine> engine, const ServerOptions& options = TestOptions(),
                                           const std::string& folder = DemoModel()) {
  const ModelInfo info = engine->info();
  auto model = ServedModel::Load(folder, {"demo", "alias"}, info, true);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return nullptr;
  auto server = Server::Start(std::move(engine), std::move(model).value(), options);
  EXPECT_TRUE(server.ok()) << server.status().message();
  return server.ok() ? std::move(server).value() : nullptr;
}

/// Joined text of the streamed chunks of choice `index`, checking the form of the stream on the way: one finish_reason
/// for each choice, then nothing more of it, "[DONE]" at the end.
struct Streamed {
  std::map<int, std::string> text, reasoning, finish;
  std::map<int, Json> tool_calls, stop_reason;
  std::map<int, int> logprobs;
  Json usage;
  std::string error;
};

inline Streamed Join(const Answer& answer) {
  Streamed out;
  const auto events = answer.events();
  EXPECT_FALSE(events.empty());
  if (events.empty()) return out;
  EXPECT_EQ(events.back(), "[DONE]");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i], nullptr, false);
    EXPECT_FALSE(chunk.is_discarded()) << events[i];
    if (chunk.contains("error")) {
      out.error = chunk["error"]["message"];
      continue;
    }
    if (chunk.contains("usage") && !chunk["usage"].is_null()) out.usage = chunk["usage"];
    for (const Json& choice : chunk["choices"]) {
      const int index = choice["index"];
      EXPECT_FALSE(out.finish.contains(index)) << "a chunk after the last: " << events[i];
      if (!choice["finish_reason"].is_null()) {
        out.finish[index] = choice["finish_reason"];
        out.stop_reason[index] = choice["stop_reason"];
      }
      if (choice.contains("text")) {
        out.text[index] += choice["text"].get<std::string>();
        if (!choice["logprobs"].is_null()) out.logprobs[index] += static_cast<int>(choice["logprobs"]["tokens"].size());
        continue;
      }
      const Json& delta = choice["delta"];
      if (delta.contains("content")) out.text[index] += delta["content"].get<std::string>();
      if (delta.contains("reasoning_content")) out.reasoning[index] += delta["reasoning_content"].get<std::string>();
      if (delta.contains("tool_calls")) {
        for (const Json& call : delta["tool_calls"]) out.tool_calls[index].push_back(call);
      }
      if (!choice["logprobs"].is_null()) out.logprobs[index] += static_cast<int>(choice["logprobs"]["content"].size());
    }
  }
  return out;
}

}  // namespace fluvial::server::testing
