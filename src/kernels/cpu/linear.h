// What the stages of the CPU kernels share: a Linear's packed form, its jobs in a GemmPlan,
// scratch. Stateless.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm_plan.h"

namespace lk::cpu {

inline const PackedWeights& packed(const Linear& linear) {
  return *static_cast<const PackedWeights*>(linear.weights);
}

// Null where the token's adapter leaves this expert of the linear alone.
inline const PackedLora::Pair* lora_pair(const Linear& linear, int slot, int expert) {
  if (slot < 0 || static_cast<size_t>(slot) >= linear.lora.size() || !linear.lora[slot])
    return nullptr;
  const PackedLora::Pair& pair = static_cast<const PackedLora*>(linear.lora[slot])->experts[expert];
  return pair.rank > 0 ? &pair : nullptr;
}

// All of the batch's tokens through a dense linear, x: [T, in].
inline void add_dense(GemmPlan& plan, const Batch& batch, const Linear& linear, const float* x) {
  const PackedWeights& weights = packed(linear);
  GemmJob& job = plan.add(&weights, 0);
  for (int t = 0; t < batch.tokens; ++t) {
    job.x.push_back(x + t * weights.in);
    job.lora.push_back(lora_pair(linear, batch.adapter[t], 0));
  }
}

// An epilogue's block of rows to out: [T, width].
inline void store_rows(int row, int64_t first, const float* values, int count, int64_t width,
                       float* out) {
  std::memcpy(out + row * width + first, values,
              std::min<int64_t>(count, width - first) * sizeof(float));
}

inline float* floats(AlignedBuffer& buffer, int64_t count) {
  buffer.reserve(static_cast<size_t>(count) * sizeof(float));
  return buffer.as<float>();
}

// out[i] = norm(residual[rows[i]]), or of row i itself without `rows`.
inline void norm_rows(const CpuIsa& isa, ThreadPool& pool, const float* residual, const Norm& norm,
                      const int32_t* rows, int count, int64_t hidden, float* out) {
  pool.run(count, 8, [&](int64_t i, int) {
    isa.rms_norm(residual + (rows ? rows[i] : i) * hidden, norm.weight, norm.eps, hidden,
                 out + i * hidden);
  });
}

}  // namespace lk::cpu
