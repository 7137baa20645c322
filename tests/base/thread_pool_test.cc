#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <system_error>
#include <vector>

namespace lk {
namespace {

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

TEST(ThreadPool, RunsEveryItemOnceOnEveryNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    std::vector<int> counts(101);
    for (int loop = 1; loop <= 2000; ++loop) {
      pool.run(101, 1 + loop % 7, [&](int64_t i, int thread) {
        counts[static_cast<size_t>(i)] += thread >= 0 && thread < threads;
      });
      for (const int count : counts) ASSERT_EQ(count, loop);
    }
  }
}

TEST(ThreadPool, WaitsWithoutUsingACpu) {
  ThreadPool pool(2);
  std::atomic<bool> started = false;
  double before = 0;
  pool.run(2, [&](int64_t, int thread) {
    if (thread == 0) {
      while (!started) std::this_thread::yield();
      before = cpu_seconds();
    } else {
      started = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
  });
  EXPECT_LT(cpu_seconds() - before, 0.1);
  // And between loops.
  before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.1);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need the address space
// Ends the process: 3 after the sentence on stderr.
[[noreturn]] void start_more_than_fit() {
  rlimit limit{};
  limit.rlim_cur = limit.rlim_max = size_t{1} << 30;
  setrlimit(RLIMIT_AS, &limit);
  try {
    ThreadPool pool(4096);
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(3);
  }
  std::_Exit(0);
}

TEST(ThreadPool, SaysWhichThreadCannotBeStarted) {
  EXPECT_EXIT(start_more_than_fit(), testing::ExitedWithCode(3),
              "cannot start thread [0-9]+ of 4096: ");
}
#endif

}  // namespace
}  // namespace lk
