// The CPU implementations of kernels.h: one set of stages over the inner loops of an instruction
// set.
#pragma once

#include <memory>

#include "kernels/kernels.h"

namespace lk {

namespace cpu {
struct CpuIsa;
}

// Only where the CPU has the instruction set (kernels/select.h knows). `isa` must outlive them.
std::unique_ptr<Kernels> make_cpu_kernels(const cpu::CpuIsa& isa, int threads);

}  // namespace lk
