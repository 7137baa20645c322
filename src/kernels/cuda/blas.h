// Products of bfloat16 matrices through cuBLASLt. Each shape has one algorithm, the first that the
// library proposes for it: the same shape gives the same bits, recorded or not. Used by the
// engine's thread; throws DeviceError.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <memory>

#include "backend/cuda/cuda_device.h"

namespace lk::cuda {

// out (+)= x W^T (+ bias), sums in float32.
struct BlasProduct {
  const void* weights = nullptr;     // [out_rows, width] bfloat16
  const __nv_bfloat16* x = nullptr;  // [rows, width]
  const float* bias = nullptr;       // [out_rows]; null: none
  float* out = nullptr;              // [rows, stride], the first `out_rows` of a row are written
  int64_t stride = 0;
  int out_rows = 0, width = 0, rows = 0;
  bool add = false;
};

class Blas {
 public:
  // Takes the library's handle and workspace, for all products to come.
  explicit Blas(CudaDevice& device);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // Launches on the device's stream, also while that records; waits for nothing. False, and nothing
  // is launched, where the library has no algorithm for the shape or the alignment: the answer
  // follows from the shape and from whether `out` and `x` are aligned to 16 bytes.
  bool run(const BlasProduct& product);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lk::cuda
