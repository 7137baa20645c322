#include "server/http/io_loop.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <csignal>
#include <optional>

namespace lk {

namespace asio = boost::asio;

namespace {

class SteadyTimer : public LoopTimer {
 public:
  SteadyTimer(asio::io_context& context, std::chrono::nanoseconds delay, bool repeat,
              std::function<void()> task)
      : state_(std::make_shared<State>(State{asio::steady_timer(context), delay, repeat,
                                             std::move(task), /*stopped=*/false})) {
    state_->timer.expires_after(delay);
    wait(state_);
  }
  ~SteadyTimer() override {
    state_->stopped = true;
    state_->timer.cancel();
  }

 private:
  struct State {
    asio::steady_timer timer;
    std::chrono::nanoseconds delay;
    bool repeat;
    std::function<void()> task;
    bool stopped;  // a handler that was queued already must not run the task
  };

  static void wait(const std::shared_ptr<State>& state) {
    state->timer.async_wait([state](boost::system::error_code error) {
      if (error || state->stopped) return;
      state->task();
      if (!state->repeat || state->stopped) return;
      state->timer.expires_after(state->delay);
      wait(state);
    });
  }

  std::shared_ptr<State> state_;
};

}  // namespace

struct IoLoop::Impl {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{context.get_executor()};
  std::optional<asio::signal_set> signals;
  std::function<void(int)> on_signal;

  void wait_for_signal() {
    signals->async_wait([this](boost::system::error_code error, int signal) {
      if (error) return;
      on_signal(signal);
      wait_for_signal();
    });
  }
};

IoLoop::IoLoop() : impl_(std::make_unique<Impl>()) {}
IoLoop::~IoLoop() = default;

void IoLoop::run() { impl_->context.run(); }
void IoLoop::stop() { impl_->context.stop(); }
void IoLoop::post(std::function<void()> task) { asio::post(impl_->context, std::move(task)); }
asio::io_context& IoLoop::context() { return impl_->context; }

std::unique_ptr<LoopTimer> IoLoop::after(std::chrono::nanoseconds delay,
                                         std::function<void()> task) {
  return std::make_unique<SteadyTimer>(impl_->context, delay, false, std::move(task));
}

std::unique_ptr<LoopTimer> IoLoop::every(std::chrono::nanoseconds period,
                                         std::function<void()> task) {
  return std::make_unique<SteadyTimer>(impl_->context, period, true, std::move(task));
}

void IoLoop::on_signal(std::function<void(int)> task) {
  impl_->on_signal = std::move(task);
  impl_->signals.emplace(impl_->context, SIGINT, SIGTERM);
  impl_->wait_for_signal();
}

struct WorkPool::Impl {
  explicit Impl(int threads) : pool(static_cast<size_t>(threads)) {}
  asio::thread_pool pool;
};

WorkPool::WorkPool(int threads) : impl_(std::make_unique<Impl>(threads)) {}
WorkPool::~WorkPool() { impl_->pool.join(); }
void WorkPool::post(std::function<void()> work) { asio::post(impl_->pool, std::move(work)); }

}  // namespace lk
