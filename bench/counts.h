// What benchmarks count and how they sum up.
#pragma once

#include <algorithm>
#include <vector>

#include "quant/stored_linear.h"

namespace lk::bench {

// Bytes of codes and scales of all experts together.
inline double stored_bytes(const StoredLinear& linear) {
  double total = 0;
  for (const auto& parts : linear.experts) {
    for (const StoredMatrix& m : parts) {
      total += static_cast<double>(m.rows * code_bytes(linear.format->element, m.cols) +
                                   matrix_scales(*linear.format, m.rows, m.cols) *
                                       static_cast<int64_t>(dtype_size(m.scale_dtype)));
    }
  }
  return total;
}

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace lk::bench
