// Products with weights on the GPU: dense linears, expert layers, embedding rows, each with the
// LoRA terms of a mixed batch inside. Launches on the context's stream; nothing here waits.
#pragma once

#include <memory>
#include <span>

#include "kernels/cuda/context.h"
#include "kernels/kernels.h"

namespace lk::cuda {

// Weights in the layout of the products, on the device.
std::unique_ptr<Weights> pack_weights(CudaDevice& device, const StoredLinear& linear,
                                      const ProductForm& form, bool drop);
// Thread-safe.
std::unique_ptr<LoraWeights> pack_pairs(CudaDevice& device, const LinearSpec& spec,
                                        std::span<const LoraSource> experts);

enum class InputType : uint8_t { kF32, kBF16 };

struct LinearCall {
  const void* x = nullptr;  // [T, in], on the device
  InputType type = InputType::kF32;
  int rows = 0;          // of the output: the first tokens
  float* out = nullptr;  // [rows, out_stride], the first `out` of a row are written
  int64_t out_stride = 0;
  bool add = false;  // out += instead of out =
};
// out (+)= linear(x) + bias + LoRA.
void run_linear(Context& context, const Batch& batch, const Linear& linear, const LinearCall& call);

void run_embedding(Context& context, const Batch& batch, const EmbedArgs& args);
void run_experts(Context& context, const Batch& batch, const ExpertArgs& args);
void run_shared_expert(Context& context, const Batch& batch, const SharedExpertArgs& args);

}  // namespace lk::cuda
