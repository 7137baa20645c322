// flags: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx512vnni -mfma -mf16c -mbmi2
#include "kernels/cpu/body/simd_avx512.h"
#include "kernels/cpu/body/table.h"

namespace lk::cpu {

extern constinit const CpuIsa kIsaAvx512Bf16 = make_isa<Avx512Bf16, void>();

}  // namespace lk::cpu
