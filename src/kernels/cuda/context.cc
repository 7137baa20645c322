#include "kernels/cuda/context.h"

#include "kernels/cuda/blas.h"

namespace lk::cuda {

Context::Context(CudaDevice& device) : device_(device) {}
Context::~Context() = default;

Blas& Context::blas() {
  if (!blas_) blas_ = std::make_unique<Blas>(device_);
  return *blas_;
}

void check_launch(const char* what) { check_cuda(cudaGetLastError(), what); }

}  // namespace lk::cuda
