#include "kernels/cuda/context.h"

namespace lk::cuda {

void check_launch(const char* what) { check_cuda(cudaGetLastError(), what); }

}  // namespace lk::cuda
