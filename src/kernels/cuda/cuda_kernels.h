// The GPU implementation of kernels.h: generic rows, for every GPU from compute capability 8.0 on.
#pragma once

#include <memory>

#include "backend/cuda/cuda_device.h"
#include "kernels/kernels.h"

namespace lk {

std::unique_ptr<Kernels> make_cuda_kernels(CudaDevice& device);

}  // namespace lk
