#include "server/http/http_server.h"

#include <sys/resource.h>

#include <boost/asio/ip/tcp.hpp>
#include <optional>
#include <random>

#include "server/http/connection.h"

namespace lk {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int kBacklog = 4096;
constexpr std::chrono::milliseconds kSweep{250}, kAcceptPause{50};
constexpr std::chrono::seconds kTroubleInterval{1};

using Acceptor = asio::basic_socket_acceptor<tcp, asio::io_context::executor_type>;

}  // namespace

struct HttpServer::Impl {
  Impl(IoLoop& l, HttpOptions options, WantsBody wants_body, Handler handler)
      : loop(l), hub(std::make_shared<ConnectionHub>()), acceptor(l.context()) {
    hub->options = std::move(options);
    hub->wants_body = std::move(wants_body);
    hub->handler = std::move(handler);
    hub->context = &l.context();
    std::random_device random;
    hub->id_prefix = (uint64_t{random()} << 32) ^ random();
  }

  void accept() {
    acceptor.async_accept([this, alive = std::weak_ptr<ConnectionHub>(hub)](
                              error_code error, Connection::Socket socket) {
      if (error == asio::error::operation_aborted || alive.expired()) return;
      if (error) {
        // No descriptor or buffer is left: asking again at once would only spin.
        ++accept_retries;
        accept_failed(error);
        retry = loop.after(kAcceptPause, [this] { accept(); });
        return;
      }
      ++accepted;
      const auto connection = std::make_shared<Connection>(hub, std::move(socket));
      hub->connections.insert(connection);
      connection->start();
      accept();
    });
  }

  void accept_failed(const error_code& error) {
    const auto now = Connection::Clock::now();
    last_trouble = now;
    ++untold;
    if (trouble && now < last_told + kTroubleInterval) return;
    trouble = true;
    last_told = now;
    tell_trouble(error.message());
  }

  void tell_trouble(std::string reason) {
    const uint64_t failed = std::exchange(untold, 0);
    if (on_trouble) on_trouble({std::move(reason), failed, hub->connections.size()});
  }

  void sweep() {
    const auto now = Connection::Clock::now();
    if (trouble && now >= last_trouble + kTroubleInterval) {
      trouble = false;
      tell_trouble({});
    }
    const std::vector<std::shared_ptr<Connection>> all(hub->connections.begin(),
                                                       hub->connections.end());
    for (const auto& connection : all) connection->check_deadlines(now);
  }

  IoLoop& loop;
  std::shared_ptr<ConnectionHub> hub;
  Acceptor acceptor;
  std::unique_ptr<LoopTimer> retry, sweeper;
  uint64_t accepted = 0, accept_retries = 0;
  std::function<void(const AcceptTrouble&)> on_trouble;  // may be empty
  bool trouble = false;                                  // accepting fails
  uint64_t untold = 0;                                   // failures
  Connection::Clock::time_point last_trouble, last_told;
};

HttpServer::HttpServer(IoLoop& loop, HttpOptions options, WantsBody wants_body, Handler handler)
    : impl_(std::make_unique<Impl>(loop, std::move(options), std::move(wants_body),
                                   std::move(handler))) {}

HttpServer::~HttpServer() {
  error_code ignored;
  impl_->acceptor.close(ignored);
  const auto connections = impl_->hub->connections;
  for (const auto& connection : connections) connection->close();
  // They hold the hub that holds them.
  impl_->hub->dirty.clear();
  impl_->hub->paced.clear();
  impl_->hub->beat.reset();
}

void HttpServer::on_access(std::function<void(const AccessRecord&)> tell) {
  impl_->hub->on_access = std::move(tell);
}

void HttpServer::on_accept_trouble(std::function<void(const AcceptTrouble&)> tell) {
  impl_->on_trouble = std::move(tell);
}

Status HttpServer::listen() {
  const HttpOptions& options = impl_->hub->options;
  const auto refused = [&](const error_code& error) {
    return invalid("cannot listen on {}:{}: {}", options.host, options.port, error.message());
  };
  error_code error;
  tcp::resolver resolver(impl_->loop.context());
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error) return refused(error);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  Acceptor& acceptor = impl_->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error) return refused(error);
  impl_->accept();
  impl_->sweeper = impl_->loop.every(kSweep, [impl = impl_.get()] { impl->sweep(); });
  return {};
}

std::string HttpServer::host() const {
  error_code ignored;
  return impl_->acceptor.local_endpoint(ignored).address().to_string();
}

int HttpServer::port() const {
  error_code ignored;
  return impl_->acceptor.local_endpoint(ignored).port();
}

void HttpServer::drain(bool accept) {
  impl_->hub->draining = true;
  error_code ignored;
  if (!accept) impl_->acceptor.close(ignored);
  const auto connections = impl_->hub->connections;
  for (const auto& connection : connections) connection->drain();
}

HttpCounters HttpServer::counters() const {
  return {impl_->hub->connections.size(), impl_->hub->exchanges, impl_->accepted,
          impl_->accept_retries};
}

bool HttpServer::sending() const {
  return std::any_of(impl_->hub->connections.begin(), impl_->hub->connections.end(),
                     [](const auto& connection) { return connection->unsent() > 0; });
}

size_t raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised{limit.rlim_max, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur;
}

}  // namespace lk
