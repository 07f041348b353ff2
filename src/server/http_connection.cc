// SPDX-License-Identifier: Apache-2.0
#include "server/http_connection.h"

#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <cerrno>

namespace fluvial::server {
namespace {

using boost::system::error_code;

// A client may send its next request early; more than this before the answer has ended is abuse.
constexpr size_t kMaxEarlyBytes = 64 << 10;
// What a refused client may still send before the connection is cut.
constexpr size_t kMaxDiscard = size_t{4} << 20;
constexpr std::chrono::milliseconds kLingerTime{2000};

std::string Reason(int status) {
  return std::string(http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status))));
}

}  // namespace

Reply::Reply(std::shared_ptr<HttpCore> core, std::shared_ptr<Connection> connection, HttpRequest head, bool http10,
             bool keep_alive)
    : core_(std::move(core)),
      head_(std::move(head)),
      http10_(http10),
      connection_(std::move(connection)),
      keep_alive_(keep_alive) {}

std::string Reply::Head(int status, std::string_view content_type,
                        const std::vector<std::pair<std::string, std::string>>& headers, std::optional<size_t> length) {
  const std::lock_guard lock(mutex_);
  status_ = status;
  if (core_->draining.load(std::memory_order_relaxed) || (!length.has_value() && http10_)) keep_alive_ = false;
  chunked_ = !length.has_value() && !http10_;
  std::string out = (http10_ ? "HTTP/1.0 " : "HTTP/1.1 ") + std::to_string(status) + " " + Reason(status) + "\r\n";
  out += "Server: fluvial\r\nContent-Type: ";
  out += content_type;
  out += "\r\n";
  for (const auto& [name, value] : headers) out += name + ": " + value + "\r\n";
  if (length.has_value()) out += "Content-Length: " + std::to_string(*length) + "\r\n";
  if (chunked_) out += "Transfer-Encoding: chunked\r\n";
  out += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return out;
}

void Reply::Send(HttpResponse response) {
  std::string bytes = Head(response.status, response.content_type, response.headers, response.body.size());
  if (head_.method != "HEAD") bytes += response.body;
  Queue(bytes, true, false);
}

void Reply::BeginStream() {
  // X-Accel-Buffering: nginx would otherwise collect the events.
  Queue(Head(200, "text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
             std::nullopt),
        false, false);
}

bool Reply::Write(std::string_view piece) {
  if (piece.empty()) return true;
  bool chunked;
  {
    const std::lock_guard lock(mutex_);
    chunked = chunked_;
  }
  if (!chunked) return Queue(piece, false, true);
  char size[20];
  const int n = std::snprintf(size, sizeof(size), "%zx\r\n", piece.size());
  std::string bytes(size, static_cast<size_t>(n));
  bytes += piece;
  bytes += "\r\n";
  return Queue(bytes, false, true);
}

void Reply::EndStream() {
  bool chunked;
  {
    const std::lock_guard lock(mutex_);
    chunked = chunked_;
  }
  Queue(chunked ? "0\r\n\r\n" : "", true, false);
}

bool Reply::Queue(std::string_view bytes, bool end, bool bounded) {
  bool slow = false;
  std::shared_ptr<Connection> connection;
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || detached_) return false;
    slow = bounded && queued_.size() + bytes.size() > core_->options.max_pending_bytes;
    if (!slow) queued_ += bytes;
    ended_ = end;
    if (posted_ && !slow) return true;
    posted_ = true;
    connection = connection_;
  }
  asio::post(core_->io, [self = shared_from_this(), connection, slow] {
    if (connection->reply_ != self) return;
    if (slow) {
      connection->Close();
    } else {
      connection->Flush();
    }
  });
  return !slow;
}

void Reply::OnLost(std::function<void()> lost) {
  {
    const std::lock_guard lock(mutex_);
    if (!lost_) {
      if (!detached_) on_lost_ = std::move(lost);
      return;
    }
  }
  lost();
}

std::string Reply::Take(bool* end) {
  const std::lock_guard lock(mutex_);
  *end = ended_;
  posted_ = !queued_.empty();
  return std::exchange(queued_, {});
}

void Reply::Detach(bool lost) {
  std::function<void()> tell;
  std::shared_ptr<Connection> connection;
  int status;
  {
    const std::lock_guard lock(mutex_);
    if (detached_) return;
    detached_ = true;
    lost_ = lost;
    tell.swap(on_lost_);
    connection.swap(connection_);
    queued_.clear();
    status = lost ? 499 : status_;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (core_->hooks.done) core_->hooks.done(head_, status, seconds);
  if (lost && tell) tell();
}

Connection::Connection(std::shared_ptr<HttpCore> core, tcp::socket socket)
    : core_(std::move(core)), socket_(std::move(socket)), read_timer_(core_->io), write_timer_(core_->io) {}

void Connection::Start(bool refuse) {
  error_code ignored;
  (void)socket_.set_option(tcp::no_delay(true), ignored);
  if (refuse) {
    Refuse(503, "the server has as many connections as it may have: try again later");
  } else {
    WaitForRequest();
  }
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  error_code ignored;
  (void)socket_.close(ignored);
  ReleaseBody();
  read_timer_.cancel();
  write_timer_.cancel();
  const std::shared_ptr<Connection> self = shared_from_this();  // outlives its place in the set
  if (core_->open.erase(self) > 0) core_->count.fetch_sub(1);
  if (reply_ != nullptr) std::exchange(reply_, nullptr)->Detach(true);
}

void Connection::CloseIfIdle() {
  if (state_ == State::kIdle) Close();
}

void Connection::ExpireReading(std::chrono::milliseconds after) {
  read_timer_.expires_after(after);
  read_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error || self->read_timer_.expiry() > std::chrono::steady_clock::now()) return;
    if (self->state_ == State::kReading) {
      self->Refuse(408, "the request did not arrive in time");
    } else if (self->state_ != State::kBusy) {
      self->Close();
    }
  });
}

void Connection::ExpireWriting(std::chrono::milliseconds after) {
  write_timer_.expires_after(after);
  write_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error || self->write_timer_.expiry() > std::chrono::steady_clock::now()) return;
    if (self->write_pending_) self->Close();
  });
}

void Connection::WaitForRequest() {
  state_ = State::kIdle;
  if (buffer_.size() > 0) return ReadHead();
  ExpireReading(core_->options.idle_timeout);
  Watch();
}

void Connection::Watch() {
  if (watching_) return;
  watching_ = true;
  socket_.async_wait(tcp::socket::wait_read,
                     [self = shared_from_this()](error_code error) { self->OnReadable(error); });
}

void Connection::OnReadable(const error_code& error) {
  watching_ = false;
  if (state_ == State::kClosed) return;
  if (error) return Close();
  if (state_ == State::kIdle) return ReadHead();
  if (state_ != State::kBusy) return;  // whoever reads sees it
  // Bytes: the next request, early. End of stream: the client has gone, and with it the reason to go on.
  char bytes[4096];
  const ssize_t n = ::recv(socket_.native_handle(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (n > 0) {
    if (buffer_.size() + static_cast<size_t>(n) > kMaxEarlyBytes) return Close();
    const auto space = buffer_.prepare(static_cast<size_t>(n));
    std::memcpy(space.data(), bytes, static_cast<size_t>(n));
    buffer_.commit(static_cast<size_t>(n));
  } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    return Close();
  }
  Watch();
}

void Connection::ReadHead() {
  state_ = State::kReading;
  parser_.emplace();
  parser_->header_limit(core_->options.max_header_bytes);
  parser_->body_limit(core_->options.max_body_bytes);
  ExpireReading(core_->options.header_timeout);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, size_t) { self->OnHead(error); });
}

HttpRequest Connection::HeadOf() const {
  const auto& message = parser_->get();
  HttpRequest head;
  head.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t mark = target.find('?');
  head.path = target.substr(0, mark);
  if (mark != std::string::npos) head.query = target.substr(mark + 1);
  head.authorization = std::string(message[http::field::authorization]);
  return head;
}

std::shared_ptr<Reply> Connection::MakeReply(bool keep_alive) {
  HttpRequest head;
  bool http10 = false;
  if (parser_.has_value() && parser_->is_header_done()) {
    head = HeadOf();
    http10 = parser_->get().version() == 10;
  }
  reply_ = std::make_shared<Reply>(core_, shared_from_this(), std::move(head), http10, keep_alive);
  state_ = State::kBusy;
  return reply_;
}

void Connection::RefuseRead(const error_code& error) {
  if (error == http::error::header_limit) {
    return Refuse(431, "the head of the request is larger than " + std::to_string(core_->options.max_header_bytes) +
                           " bytes: shorten it");
  }
  if (error == http::error::body_limit) {
    return Refuse(413, "the body of the request is larger than " + std::to_string(core_->options.max_body_bytes) +
                           " bytes: shorten it");
  }
  const bool malformed = error.category() == http::make_error_code(http::error::bad_method).category() &&
                         error != http::error::end_of_stream && error != http::error::partial_message;
  if (malformed) return Refuse(400, "this is not an HTTP/1.1 request (" + error.message() + ")");
  Close();
}

void Connection::Refuse(int status, const std::string& message) {
  error_code ignored;
  (void)socket_.cancel(ignored);  // a read that ran out of time; its handler sees the new state
  MakeReply(false)->Send(core_->hooks.refuse(status, message));
}

void Connection::OnHead(const error_code& error) {
  if (state_ != State::kReading) return;
  if (error) return RefuseRead(error);
  if (std::optional<HttpResponse> refusal = core_->hooks.check(HeadOf())) {
    read_timer_.cancel();
    // What a client sends after a refused head would be read as the next request.
    return MakeReply(parser_->is_done() && parser_->keep_alive())->Send(std::move(*refusal));
  }
  if (!ReserveBody()) return Refuse(503, "the server is reading as much as it can hold: try again later");
  ExpireReading(core_->options.body_timeout);
  if (parser_->is_done() || !beast::iequals(parser_->get()[http::field::expect], "100-continue")) return ReadBody();
  writing_ = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(writing_), [self = shared_from_this()](error_code failed, size_t) {
    if (self->state_ != State::kReading) return;
    if (failed) return self->Close();
    self->ReadBody();
  });
}

bool Connection::ReserveBody() {
  if (parser_->is_done()) return true;
  const auto length = parser_->content_length();
  const uint64_t need = length.has_value() ? *length : core_->options.max_body_bytes;
  if (core_->body_bytes + need > core_->options.max_all_body_bytes) return false;
  reserved_ = need;
  core_->body_bytes += need;
  return true;
}

void Connection::ReleaseBody() { core_->body_bytes -= std::exchange(reserved_, 0); }

void Connection::ReadBody() {
  http::async_read(socket_, buffer_, *parser_,
                   [self = shared_from_this()](error_code error, size_t) { self->OnBody(error); });
}

void Connection::OnBody(const error_code& error) {
  if (state_ != State::kReading) return;
  if (error) return RefuseRead(error);
  read_timer_.cancel();
  HttpRequest request = HeadOf();
  request.body = std::move(parser_->get().body());
  const std::shared_ptr<Reply> reply = MakeReply(parser_->keep_alive());
  Watch();
  core_->hooks.handle(std::move(request), reply);
}

void Connection::Flush() {
  if (write_pending_ || reply_ == nullptr) return;
  bool end = false;
  writing_ = reply_->Take(&end);
  if (writing_.empty()) {
    if (end) EndReply();
    return;
  }
  write_pending_ = true;
  ExpireWriting(core_->options.write_timeout);
  asio::async_write(socket_, asio::buffer(writing_),
                    [self = shared_from_this()](error_code error, size_t) { self->OnWritten(error); });
}

void Connection::OnWritten(const error_code& error) {
  write_pending_ = false;
  write_timer_.cancel();
  if (state_ == State::kClosed) return;
  if (error) return Close();
  Flush();
}

void Connection::EndReply() {
  const std::shared_ptr<Reply> reply = std::exchange(reply_, nullptr);
  bool keep_alive;
  {
    const std::lock_guard lock(reply->mutex_);
    keep_alive = reply->keep_alive_;
  }
  ReleaseBody();
  reply->Detach(false);
  const bool all_read = parser_.has_value() && parser_->is_done() && buffer_.size() == 0;
  parser_.reset();
  if (keep_alive && !core_->draining.load(std::memory_order_relaxed)) return WaitForRequest();
  if (!all_read) return Linger();
  error_code ignored;
  (void)socket_.shutdown(tcp::socket::shutdown_both, ignored);
  Close();
}

void Connection::Linger() {
  // Closing with unread input makes the kernel reset the connection, and the client may lose our answer.
  state_ = State::kLingering;
  error_code ignored;
  (void)socket_.shutdown(tcp::socket::shutdown_send, ignored);
  ExpireReading(kLingerTime);
  Discard();
}

void Connection::Discard() {
  buffer_.clear();
  socket_.async_read_some(buffer_.prepare(16 << 10), [self = shared_from_this()](error_code error, size_t n) {
    if (self->state_ != State::kLingering) return;
    self->discarded_ += n;
    if (error || self->discarded_ > kMaxDiscard) return self->Close();
    self->Discard();
  });
}

}  // namespace fluvial::server
