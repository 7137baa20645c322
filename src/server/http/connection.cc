#include "server/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "server/api/api_error.h"

namespace lk {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kMostPipelined = 64 << 10;  // bytes kept of requests that wait for their turn
constexpr size_t kMostUnsent = 256 << 10;    // of answers, before the next request is looked at
constexpr size_t kMostPaced = 16 << 10;      // of events that wait for a beat
constexpr std::chrono::seconds kLinger{2};
constexpr std::string_view kProbe = "HTTP/1.1 ";  // what every answer begins with

// What a client may call its request in our logs.
bool good_id(const std::string& id) {
  return !id.empty() && id.size() <= 128 &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::string ConnectionHub::new_id() {
  return fmt::format("{:016x}", id_prefix + 0x9e3779b97f4a7c15u * ++next_id);
}

class ConnectionExchange : public Exchange {
 public:
  ConnectionExchange(Connection* connection, HttpRequest request, std::string id, bool keep_alive,
                     bool http10)
      : connection_(connection),
        request_(std::move(request)),
        id_(std::move(id)),
        keep_alive_(keep_alive),
        http10_(http10),
        head_only_(request_.method == "HEAD") {}

  const HttpRequest& request() const override { return request_; }
  const std::string& id() const override { return id_; }

  void reply(int status, std::string content_type, std::string body, HttpHeaders headers) override {
    if (connection_ == nullptr || streaming_) return;
    ResponseHead head = response_head(status, content_type);
    head.content_length = body.size();
    connection_->write_head(head, headers);
    if (!head_only_) connection_->out_ += body;
    finish(status);
  }

  void begin_events() override { streaming_ = true; }
  bool begun() const { return begun_; }  // its head is written

  void write(std::string events) override {
    if (connection_ == nullptr || !streaming_ || events.empty()) return;
    const bool first = !begun_;
    begin();
    if (!head_only_) append_data(events);
    if (first || connection_->unsent() > kMostPaced) {
      connection_->send_soon();
    } else {
      connection_->send_paced();
    }
  }

  void end_events() override {
    if (connection_ == nullptr || !streaming_) return;
    begin();
    if (http10_) {
      keep_alive_ = false;
    } else if (!head_only_) {
      connection_->out_ += "0\r\n\r\n";
    }
    finish(200);
  }

  size_t backlog() const override { return connection_ == nullptr ? 0 : connection_->unsent(); }
  void on_gone(std::function<void()> gone) override {
    if (connection_ != nullptr) gone_ = std::move(gone);
  }
  void on_drained(std::function<void()> drained) override {
    if (connection_ != nullptr) drained_ = std::move(drained);
  }

  void client_gone() {
    tell(499);
    connection_ = nullptr;
    if (!calling_drained_) drained_ = nullptr;
    if (auto gone = std::exchange(gone_, nullptr)) gone();
  }
  void drained() {
    if (!streaming_ || !drained_) return;
    calling_drained_ = true;
    drained_();
    calling_drained_ = false;
    if (connection_ == nullptr) drained_ = nullptr;
  }

 private:
  ResponseHead response_head(int status, std::string_view content_type) const {
    ResponseHead head;
    head.status = status;
    head.content_type = content_type;
    head.keep_alive = keep_alive_ && !connection_->hub_->draining;
    head.request_id = id_;
    head.cross_origin = request_.headers.contains("origin");
    return head;
  }

  void begin() {
    if (begun_) return;
    begun_ = true;
    ResponseHead head = response_head(200, "text/event-stream; charset=utf-8");
    head.chunked = !http10_;
    if (http10_) head.keep_alive = false;
    connection_->write_head(head, {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}});
  }

  void append_data(const std::string& data) {
    if (http10_) {
      connection_->out_ += data;
    } else {
      append_chunk(connection_->out_, data);
    }
  }

  void tell(int status) const {
    if (!connection_->hub_->on_access) return;
    connection_->hub_->on_access({id_, connection_->client_, request_.method, request_.path, status,
                                  Connection::Clock::now() - begun_at_});
  }

  void finish(int status) {
    tell(status);
    gone_ = nullptr;
    if (!calling_drained_) drained_ = nullptr;
    std::exchange(connection_, nullptr)->exchange_done(keep_alive_);
  }

  Connection* connection_;  // null once the answer is complete or the client has gone
  HttpRequest request_;
  std::string id_;
  bool keep_alive_, http10_, head_only_;
  const Connection::Clock::time_point begun_at_ = Connection::Clock::now();
  bool streaming_ = false, begun_ = false;
  bool calling_drained_ = false;  // it is dropped after the call
  std::function<void()> gone_, drained_;
};

Connection::Connection(std::shared_ptr<ConnectionHub> hub, Socket socket)
    : hub_(std::move(hub)),
      socket_(std::move(socket)),
      parser_({hub_->options.header_limit, hub_->options.body_limit}) {}

void Connection::start() {
  error_code ignored;
  client_ = socket_.remote_endpoint(ignored).address().to_string();
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  if (hub_->options.send_buffer > 0) {
    socket_.set_option(asio::socket_base::send_buffer_size(hub_->options.send_buffer), ignored);
  }
  deadline_ = Clock::now() + hub_->options.idle_timeout;
  stalled_ = Clock::now();
  wait_readable();
}

// A read is always pending, while an answer is made too: it tells when the client goes.
void Connection::wait_readable() {
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](error_code error) {
    if (error || self->closed_) return;
    self->on_readable();
  });
}

void Connection::on_readable() {
  error_code error;
  const size_t count = socket_.read_some(asio::buffer(hub_->read_buffer), error);
  if (error == asio::error::would_block || error == asio::error::try_again ||
      error == asio::error::interrupted) {
    return wait_readable();
  }
  if (error == asio::error::eof && !lingering_) return on_end();
  if (error) return close();
  if (!lingering_ && !close_after_flush_) {
    parser_.feed({hub_->read_buffer.data(), count});
    process();
    if (closed_) return;
    if (exchange_ != nullptr || unsent() > kMostUnsent) {
      reading_paused_ = parser_.buffered() > kMostPipelined;
    }
  }
  if (!reading_paused_) wait_readable();
}

// The client sends no more. It closed the connection, or only its side of it and waits for its
// answers: that looks the same until something is sent, which a closed socket answers with a reset.
// So the first bytes of the answer go out now.
void Connection::on_end() {
  peer_done_ = true;
  socket_.async_wait(Socket::wait_error, [self = shared_from_this()](error_code error) {
    if (!error) self->close();
  });
  if (exchange_ != nullptr && !exchange_->begun()) {
    out_ += kProbe;
    probed_ = true;
    send_soon();
  }
  process();
}

// After the client's end: closes once nothing is left to answer.
void Connection::end_if_answered() {
  if (!peer_done_ || closed_ || exchange_ != nullptr || close_after_flush_) return;
  if (unsent() > kMostUnsent) return;  // more requests may wait for these to go out
  const auto state = parser_.state();
  if (state == RequestParser::State::kHead || state == RequestParser::State::kBody) {
    refuse(400, "the connection ended before the request was complete");
  } else if (unsent() > 0) {
    close_after_flush_ = true;
  } else {
    close();
  }
}

void Connection::write_head(const ResponseHead& head, const HttpHeaders& headers) {
  const size_t begin = out_.size();
  append_head(out_, head, headers);
  if (std::exchange(probed_, false)) out_.erase(begin, kProbe.size());
}

void Connection::process() {
  if (processing_) return;
  processing_ = true;
  using State = RequestParser::State;
  while (!closed_ && exchange_ == nullptr && !close_after_flush_ && !lingering_ &&
         unsent() <= kMostUnsent) {
    const State state = parser_.state();
    account_body();
    if (state == State::kFailed) {
      refuse(parser_.error_status(), parser_.error());
      break;
    }
    if (state != reading_) {
      reading_ = state;
      const auto& options = hub_->options;
      deadline_ = Clock::now() + (state == State::kIdle   ? options.idle_timeout
                                  : state == State::kHead ? options.header_timeout
                                                          : options.body_timeout);
    }
    if (state == State::kIdle || state == State::kHead) break;
    if (state == State::kBody) {
      if (head_seen_) break;
      head_seen_ = true;
      if (!hub_->wants_body(parser_.request())) {
        begin_exchange(/*body_complete=*/false);
        continue;
      }
      if (parser_.expects_continue()) {
        out_ += "HTTP/1.1 100 Continue\r\n\r\n";
        send_soon();
      }
      break;
    }
    begin_exchange(/*body_complete=*/true);
  }
  processing_ = false;
  end_if_answered();
}

void Connection::account_body() {
  using State = RequestParser::State;
  const State state = parser_.state();
  if (state != State::kBody && state != State::kDone) return;
  const size_t now = parser_.request().body.size();
  hub_->body_bytes += now - body_bytes_;
  body_bytes_ = now;
  if (hub_->body_bytes > hub_->options.bodies_limit && body_bytes_ > 0) {
    refuse(503, "too many request bodies are being read, try again later");
  }
}

void Connection::release_body() {
  hub_->body_bytes -= body_bytes_;
  body_bytes_ = 0;
}

void Connection::begin_exchange(bool body_complete) {
  if (close_after_flush_) return;
  HttpRequest request = std::move(parser_.request());
  if (!body_complete) request.body.clear();
  std::string id = request.header("x-request-id");
  if (!good_id(id)) id = hub_->new_id();
  const bool keep_alive = body_complete && parser_.keep_alive();
  exchange_ = std::make_shared<ConnectionExchange>(this, std::move(request), std::move(id),
                                                   keep_alive, parser_.http10());
  ++hub_->exchanges;
  hub_->handler(exchange_);
}

void Connection::exchange_done(bool keep_alive) {
  exchange_.reset();
  --hub_->exchanges;
  release_body();
  send_soon();
  if (!keep_alive || hub_->draining) {
    close_after_flush_ = true;
    return;
  }
  head_seen_ = false;
  reading_ = RequestParser::State::kDone;  // whatever comes next is a change
  parser_.next();
  process();
  if (reading_paused_ && parser_.buffered() <= kMostPipelined && !closed_) {
    reading_paused_ = false;
    wait_readable();
  }
}

void Connection::refuse(int status, const std::string& message) {
  ResponseHead head;
  head.status = status;
  head.content_type = "application/json";
  head.keep_alive = false;
  const std::string body = error_body({.status = status, .message = message});
  head.content_length = body.size();
  write_head(head, {});
  out_ += body;
  close_after_flush_ = true;
  release_body();
  send_soon();
}

// Sends are put together: one for all that is written in this turn of the loop.
void Connection::send_soon() {
  if (dirty_ || closed_) return;
  dirty_ = true;
  if (hub_->dirty.empty()) {
    asio::post(*hub_->context, [hub = hub_] {
      const auto dirty = std::exchange(hub->dirty, {});
      for (const auto& connection : dirty) connection->flush();
    });
  }
  hub_->dirty.push_back(shared_from_this());
}

// A send costs more than all else about an event (12 of 19 us, most of it in the kernel), so that
// steps which follow each other faster than anybody reads share one. The first event and the end of
// an answer go at once.
void Connection::send_paced() {
  if (dirty_ || paced_ || closed_) return;
  const auto now = Clock::now();
  const auto beat = hub_->last_beat + hub_->options.send_interval;
  if (!hub_->beat && now >= beat) {
    // All that this turn brings belongs to the beat.
    hub_->last_beat = now;
    hub_->beat.emplace(*hub_->context);
    asio::post(*hub_->context, [hub = hub_] { hub->send_beat(); });
  } else if (!hub_->beat) {
    hub_->beat.emplace(*hub_->context, beat);
    hub_->beat->async_wait([hub = hub_](error_code error) {
      if (error) return;
      hub->last_beat = Connection::Clock::now();
      hub->send_beat();
    });
  }
  paced_ = true;
  hub_->paced.push_back(shared_from_this());
}

void ConnectionHub::send_beat() {
  beat.reset();
  for (const auto& connection : std::exchange(paced, {})) connection->flush();
}

void Connection::flush() {
  dirty_ = paced_ = false;
  if (closed_ || waiting_writable_) return;
  const bool had = unsent() > 0;
  while (unsent() > 0) {
    error_code error;
    const size_t count = socket_.write_some(asio::buffer(out_.data() + out_sent_, unsent()), error);
    if (error == asio::error::interrupted) continue;
    if (error == asio::error::would_block || error == asio::error::try_again) {
      if (out_sent_ > kMostUnsent) {
        out_.erase(0, out_sent_);
        out_sent_ = 0;
      }
      waiting_writable_ = true;
      socket_.async_wait(Socket::wait_write, [self = shared_from_this()](error_code failed) {
        self->waiting_writable_ = false;
        if (!failed) self->flush();
      });
      return;
    }
    if (error) return close();
    out_sent_ += count;
    stalled_ = Clock::now();
  }
  out_sent_ = 0;
  if (out_.capacity() > kMostUnsent) {
    std::string().swap(out_);
  } else {
    out_.clear();
  }
  if (close_after_flush_) return linger();
  if (!had) return;
  if (exchange_ != nullptr) {
    const auto exchange = exchange_;
    exchange->drained();
  } else {
    process();
  }
}

// Closing while the client still sends would reset the connection and take the answer away.
void Connection::linger() {
  if (lingering_) return;
  if (peer_done_) return close();
  lingering_ = true;
  deadline_ = Clock::now() + kLinger;
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  if (reading_paused_) {
    reading_paused_ = false;
    wait_readable();
  }
}

void Connection::check_deadlines(Clock::time_point now) {
  if (closed_) return;
  if (unsent() > 0) {
    if (now > stalled_ + hub_->options.stall_timeout) close();
    return;
  }
  stalled_ = now;
  if (exchange_ != nullptr || now <= deadline_) return;
  using State = RequestParser::State;
  if (lingering_ || reading_ == State::kIdle) return close();
  refuse(408, reading_ == State::kHead ? "the request's head took too long to arrive"
                                       : "the request's body took too long to arrive");
}

void Connection::drain() {
  if (closed_ || exchange_ != nullptr) return;
  if (unsent() > 0) {
    close_after_flush_ = true;
  } else if (reading_ == RequestParser::State::kIdle) {
    close();
  }
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  const auto self = shared_from_this();
  error_code ignored;
  socket_.close(ignored);
  release_body();
  hub_->connections.erase(self);
  if (const auto exchange = std::exchange(exchange_, nullptr)) {
    --hub_->exchanges;
    exchange->client_gone();
  }
}

}  // namespace lk
