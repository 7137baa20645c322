// The I/O thread's loop: tasks from other threads, timers and signals, one after the other. Wraps
// Asio, so that nobody else includes it. `post` and `stop` may be called from any thread, the rest
// only on the thread that runs the loop (or before it runs).
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace boost::asio {
class io_context;
}

namespace lk {

// A timer that is running; it is stopped by its destruction.
class LoopTimer {
 public:
  virtual ~LoopTimer() = default;
};

class IoLoop {
 public:
  IoLoop();
  ~IoLoop();
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  // Runs tasks until `stop`.
  void run();
  void stop();
  void post(std::function<void()> task);

  [[nodiscard]] std::unique_ptr<LoopTimer> after(std::chrono::nanoseconds delay,
                                                 std::function<void()> task);
  [[nodiscard]] std::unique_ptr<LoopTimer> every(std::chrono::nanoseconds period,
                                                 std::function<void()> task);
  // `task` for each SIGINT and SIGTERM from now on.
  void on_signal(std::function<void(int)> task);

  boost::asio::io_context& context();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A few threads for work that would hold up the loop. Thread-safe.
class WorkPool {
 public:
  explicit WorkPool(int threads);
  // Finishes what was posted.
  ~WorkPool();
  void post(std::function<void()> work);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lk
