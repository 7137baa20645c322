// Loops and switches over compile-time indices. Header-only, no state.
#pragma once

namespace lk::cpu {
namespace {

template <int N, int J = 0, class F>
inline __attribute__((always_inline)) void for_each_index(F& f) {
  if constexpr (J < N) {
    f.template operator()<J>();
    for_each_index<N, J + 1>(f);
  }
}

// Calls f<i>() for the run-time i in [0, N).
template <int N, int J = 0, class F>
inline void dispatch_index(int i, F&& f) {
  if constexpr (J < N) {
    if (i == J)
      f.template operator()<J>();
    else
      dispatch_index<N, J + 1>(i, f);
  }
}

}  // namespace
}  // namespace lk::cpu
