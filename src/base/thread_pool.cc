#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>

namespace lk {
namespace {

// A decode step has some ten loops a layer, microseconds apart: a worker that slept at once would
// be woken more often than it works. About 50 us of spinning bridges the gaps; then it sleeps.
constexpr int kSpins = 4000;

void pause() { __builtin_ia32_pause(); }

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
  } catch (
      ...) {  // no memory or no thread to be had: those that run must end before the members do
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
  active_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  work(0);
  for (int spins = 0; active_.load(std::memory_order_acquire) != 0; ++spins) {
    // Where CPUs are shared with other programs the last worker may be off its CPU: give ours away
    // then.
    if (spins < kSpins)
      pause();
    else
      sched_yield();
  }
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
  uint64_t seen = 0;
  while (true) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen &&
           !stop_.load(std::memory_order_relaxed)) {
      if (++spins < kSpins) {
        pause();
        continue;
      }
      std::unique_lock lock(mutex_);
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return stop_ || epoch_.load(std::memory_order_seq_cst) != seen; });
      sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (stop_) return;
    seen = epoch_.load(std::memory_order_acquire);
    work(thread);
    active_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace lk
