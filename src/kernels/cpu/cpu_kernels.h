// The CPU implementations of kernels.h: one set of stages over the inner loops of an instruction
// set.
#pragma once

#include <memory>

#include "kernels/kernels.h"

namespace lk {

// Each must only be called where the CPU has the instruction set (kernels/select.h knows).
std::unique_ptr<Kernels> make_avx2_kernels(int threads);
std::unique_ptr<Kernels> make_avx512_kernels(int threads);
// The same without VNNI's byte products, as on a CPU that lacks them: for tests.
std::unique_ptr<Kernels> make_avx512_kernels_without_vnni(int threads);
std::unique_ptr<Kernels> make_avx512bf16_kernels(int threads);

}  // namespace lk
