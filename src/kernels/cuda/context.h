// What the CUDA stages share: the device with its stream, and scratch memory. Used by the engine's
// thread.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/cuda/cuda_device.h"
#include "backend/device_buffer.h"

namespace lk::cuda {

// Each has one buffer, which a stage may use from its first launch to its last.
enum class Scratch : uint8_t {
  kNormed,       // bfloat16 [T, H]: what a stage's projections read
  kProjected,    // float32: what they give (q, k, v; u, z, a, b; zxBCdt)
  kProjected2,   // the same, for stages that keep two
  kShrunk,       // float32 [rows, rank]: A x
  kWorkMap,      // int32: rows sorted by expert
  kExpertIn,     // bfloat16: inputs of the experts
  kExpertMid,    // bfloat16: between the experts' two matrices
  kExpertOut,    // float32: outputs of the experts before their sum
  kAttention,    // float32: partial results of a split context
  kSharedGate,   // float32 [T]: before the sigmoid of a shared expert
  kRowAdapters,  // int32 [R]: slots of the rows that want logits
  kSampling,
  kCount
};

class Blas;

class Context {
 public:
  explicit Context(CudaDevice& device);
  ~Context();

  CudaDevice& device() const { return device_; }
  cudaStream_t stream() const { return device_.stream(); }
  int multiprocessors() const { return device_.multiprocessors(); }

  // At least `count` values; their contents are undefined.
  template <typename T>
  T* scratch(Scratch which, size_t count) {
    DeviceBuffer& buffer = scratch_[static_cast<size_t>(which)];
    buffer.reserve(device_, count * sizeof(T));
    return buffer.as<T>();
  }

  // Made at its first use, which no recording is: a step runs unrecorded before it is recorded.
  Blas& blas();

 private:
  CudaDevice& device_;
  std::unique_ptr<Blas> blas_;
  std::array<DeviceBuffer, static_cast<size_t>(Scratch::kCount)> scratch_;
};

// Throws DeviceError if the last launch, of `what`, failed.
void check_launch(const char* what);

}  // namespace lk::cuda
