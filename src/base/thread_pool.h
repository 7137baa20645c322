// A fixed set of worker threads that run one parallel loop at a time. The calling thread takes
// part. One thread calls `run` at a time; the object may be moved between callers, not shared.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lk {

class ThreadPool {
 public:
  // `threads` in all, the caller included; 0: one for each CPU that this process may run on.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(item, thread) for every item in [0, items), in any order, on threads [0, threads()).
  // Items are handed out `grain` at a time. Returns when all are done. The result must not depend
  // on who runs what.
  template <typename Body>
  void run(int64_t items, int64_t grain, Body&& body) {
    if (items <= 0) return;
    if (workers_.empty() || items <= grain) {
      for (int64_t i = 0; i < items; ++i) body(i, 0);
      return;
    }
    using B = std::remove_reference_t<Body>;
    launch(items, grain, const_cast<void*>(static_cast<const void*>(&body)),
           [](void* b, int64_t item, int thread) { (*static_cast<B*>(b))(item, thread); });
  }
  template <typename Body>
  void run(int64_t items, Body&& body) {
    run(items, 1, std::forward<Body>(body));
  }

 private:
  using Call = void (*)(void* body, int64_t item, int thread);
  void launch(int64_t items, int64_t grain, void* body, Call call);
  void work(int thread);
  void worker(int thread);
  void stop();  // ends and joins the workers

  std::vector<std::thread> workers_;
  // The current loop; written by `launch` before `epoch_` is raised.
  int64_t items_ = 0, grain_ = 1;
  void* body_ = nullptr;
  Call call_ = nullptr;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> epoch_{0};
  alignas(64) std::atomic<int> active_{0};  // workers in the current loop, and whether it is open
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
};

}  // namespace lk
