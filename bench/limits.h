// What this machine can do at most, measured on the spot: the ceilings that results are stated
// against.
#pragma once

#include "base/thread_pool.h"

namespace lk::bench {

struct Limits {
  double read_gb_s = 0;     // all threads reading memory
  double fma_gflop_s = 0;   // float32 fused multiply-add, widest vectors
  double bf16_gflop_s = 0;  // bfloat16 pair products; 0 where the CPU has none
  double peak_gflop_s() const { return fma_gflop_s > bf16_gflop_s ? fma_gflop_s : bf16_gflop_s; }
};

Limits measure_limits(ThreadPool& pool);

// Median wall time in seconds of `repeats` calls.
template <typename F>
double median_seconds(int repeats, F&& f);

double now();  // seconds
// From here on now() counts the calling thread's CPU time: what one thread does on a machine whose
// other guests take turns with it.
void use_thread_clock();

}  // namespace lk::bench

#include <algorithm>
#include <vector>

template <typename F>
double lk::bench::median_seconds(int repeats, F&& f) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const double start = now();
    f();
    times.push_back(now() - start);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[repeats / 2];
}
