// The state of one rendering that operations need: budget, clock, and the objects to take apart at
// its end. One thread.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja/limits.h"
#include "text/jinja/value.h"

namespace lk::jinja {

// Thrown inside the engine only; Template::render turns it into an Error.
struct RenderError {
  std::string message;
  bool from_template =
      false;  // raise_exception: the message is the template author's, told as it is
};

[[noreturn]] inline void raise_error(std::string message) { throw RenderError{std::move(message)}; }

using Clock = std::function<std::tm()>;

class Namespace;

class Runtime {
 public:
  Runtime(const Limits& limits, const Clock& clock)
      : limits_(limits), clock_(clock), steps_left_(limits.steps) {}
  // A namespace may hold itself: their contents are dropped here.
  ~Runtime();

  void charge(int64_t steps) {
    if ((steps_left_ -= steps) < 0) out_of_steps();
  }
  void charge_bytes(size_t bytes) { charge(static_cast<int64_t>(bytes / 16) + 1); }
  // Before a string of `bytes` is built.
  void check_string(size_t bytes);

  class Deeper {
   public:
    explicit Deeper(Runtime& rt) : rt_(rt) {
      if (++rt.depth_ > rt.limits_.depth) rt.too_deep();
    }
    ~Deeper() { --rt_.depth_; }
    Deeper(const Deeper&) = delete;

   private:
    Runtime& rt_;
  };

  const Limits& limits() const { return limits_; }
  std::tm now() const { return clock_(); }
  void own(std::shared_ptr<Namespace> space) { namespaces_.push_back(std::move(space)); }
  int64_t steps_used() const { return limits_.steps - steps_left_; }

  int line = 0;  // of the construct at work, for error sentences

 private:
  [[noreturn]] void out_of_steps();
  [[noreturn]] void too_deep();

  const Limits& limits_;
  const Clock& clock_;
  int64_t steps_left_;
  int depth_ = 0;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

}  // namespace lk::jinja
