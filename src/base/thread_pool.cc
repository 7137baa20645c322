#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include <fmt/core.h>

namespace lk {
namespace {

// A decode step has some ten loops a layer, microseconds apart: a worker that slept at once would
// be woken more often than it works, so it first waits this long on its CPU.
constexpr std::chrono::microseconds kSpin{30};

// active_: this bit while workers may still join the loop, plus the workers that have joined and
// not left.
constexpr int kOpen = 1 << 30;

// Returns when `done()` holds or, false, after kSpin.
template <typename Done>
bool spin_until(Done&& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      __builtin_ia32_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = usable_cpus();
  workers_.reserve(static_cast<size_t>(threads) - 1);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
  } catch (const std::system_error& error) {
    stop();  // those that run must end before the members do
    throw std::system_error(
        error.code(), fmt::format("cannot start thread {} of {}", workers_.size() + 2, threads));
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::launch(int64_t items, int64_t grain, void* body, Call call) {
  items_ = items;
  grain_ = grain;
  body_ = body;
  call_ = call;
  next_.store(0, std::memory_order_relaxed);
  active_.store(kOpen, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  work(0);
  // Where other programs share the CPUs a worker may be off its own for milliseconds. One that has
  // not joined yet is left behind; for the others we sleep, so that they get our CPU.
  active_.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto left = [&] { return active_.load(std::memory_order_acquire) == 0; };
  if (spin_until(left)) return;
  while (const int working = active_.load(std::memory_order_acquire)) active_.wait(working);
}

void ThreadPool::work(int thread) {
  while (true) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= items_) return;
    const int64_t end = std::min(items_, begin + grain_);
    for (int64_t i = begin; i < end; ++i) call_(body_, i, thread);
  }
}

void ThreadPool::worker(int thread) {
  ::pthread_setname_np(::pthread_self(), "lk-worker");
  uint64_t seen = 0;
  const auto called = [&] {
    return epoch_.load(std::memory_order_seq_cst) != seen || stop_.load(std::memory_order_relaxed);
  };
  while (true) {
    if (!spin_until(called)) {
      std::unique_lock lock(mutex_);
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, called);
      sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (stop_) return;
    seen = epoch_.load(std::memory_order_acquire);
    int active = active_.load(std::memory_order_relaxed);
    while ((active & kOpen) != 0 &&
           !active_.compare_exchange_weak(active, active + 1, std::memory_order_acq_rel,
                                          std::memory_order_relaxed)) {
    }
    if ((active & kOpen) == 0) continue;
    work(thread);
    if (active_.fetch_sub(1, std::memory_order_acq_rel) == 1) active_.notify_one();
  }
}

}  // namespace lk
