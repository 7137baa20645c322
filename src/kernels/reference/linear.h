// Weights as they lie in the file and plain products with them. The checkpoint must outlive the
// weights. Stateless functions.
#pragma once

#include <functional>

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace lk::reference {

struct ReferenceWeights : Weights {
  StoredLinear linear;  // views into the checkpoint
  size_t bytes() const override;
};

const ReferenceWeights& weights_of(const Linear& linear);

// y[i, o] = W[expert][o, :] . x[i, :] + bias[o], i < count; x: [count, in] as the form leaves it.
// Each weight row is decoded once. Rows run in parallel where `pool` is given.
void matmul(const ReferenceWeights& weights, int expert, const float* x, int64_t count, float* y,
            ThreadPool* pool);

// y[out] += the adapter's term of one expert for x[in].
using AddLora =
    std::function<void(const Linear& linear, int slot, int expert, const float* x, float* y)>;

// Kernels::experts over ReferenceWeights. LoRA reads x and g before they are quantized.
void experts(ThreadPool& pool, const Batch& batch, const ExpertArgs& args, const AddLora& add_lora);

}  // namespace lk::reference
