// One client's connection: reads requests in order, hands each to the handler, sends the answers.
// Inside the HTTP server only (it includes Asio). Used on the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "server/http/http_server.h"
#include "server/http/request_parser.h"
#include "server/http/response_head.h"

namespace lk {

class Connection;

// What the connections of a server share.
struct ConnectionHub {
  HttpOptions options;
  HttpServer::WantsBody wants_body;
  HttpServer::Handler handler;
  std::function<void(const AccessRecord&)> on_access;  // may be empty
  boost::asio::io_context* context = nullptr;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  std::vector<std::shared_ptr<Connection>> dirty;  // have bytes to send, at the end of this turn
  std::vector<std::shared_ptr<Connection>> paced;  // have events to send, at the next beat
  std::optional<boost::asio::steady_timer> beat;   // exists while `paced` waits for it
  std::chrono::steady_clock::time_point last_beat;
  std::vector<char> read_buffer = std::vector<char>(64 << 10);
  size_t body_bytes = 0;  // held for requests that are read or answered
  size_t exchanges = 0;
  bool draining = false;
  uint64_t id_prefix = 0, next_id = 0;

  std::string new_id();
  void send_beat();
};

class ConnectionExchange;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp,
                                                  boost::asio::io_context::executor_type>;
  using Clock = std::chrono::steady_clock;

  Connection(std::shared_ptr<ConnectionHub> hub, Socket socket);
  void start();
  // Ends what has waited too long.
  void check_deadlines(Clock::time_point now);
  // Closes now if no request is being read or answered, else after the answer.
  void drain();
  void close();
  void flush();
  size_t unsent() const { return out_.size() - out_sent_; }

 private:
  friend class ConnectionExchange;

  void wait_readable();
  void on_readable();
  void on_end();
  void end_if_answered();
  void write_head(const ResponseHead& head, const HttpHeaders& headers);
  void process();
  void begin_exchange(bool body_complete);
  void exchange_done(bool keep_alive);
  void refuse(int status, const std::string& message);
  void linger();
  void account_body();
  void release_body();
  void send_soon();
  void send_paced();

  std::shared_ptr<ConnectionHub> hub_;
  Socket socket_;
  RequestParser parser_;
  std::shared_ptr<ConnectionExchange> exchange_;  // the one being answered
  std::string client_;                            // its address
  std::string out_;                               // from out_sent_ on: to be sent
  size_t out_sent_ = 0;
  size_t body_bytes_ = 0;  // its share of hub_->body_bytes
  RequestParser::State reading_ = RequestParser::State::kIdle;
  Clock::time_point deadline_;  // of what is being read
  Clock::time_point stalled_;   // when the client last took bytes, or had none to take
  bool closed_ = false;
  bool reading_paused_ = false;
  bool waiting_writable_ = false;
  bool dirty_ = false;
  bool paced_ = false;
  bool processing_ = false;
  bool close_after_flush_ = false;
  bool lingering_ = false;  // the answer is out; what still comes is thrown away
  bool head_seen_ = false;
  bool peer_done_ = false;  // it sends no more
  bool probed_ = false;     // the first bytes of the next head are out already
};

}  // namespace lk
