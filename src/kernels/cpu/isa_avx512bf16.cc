#include "kernels/cpu/body/bytes_avx512.h"
#include "kernels/cpu/body/simd_avx512.h"
#include "kernels/cpu/body/table.h"

namespace lk::cpu {

constinit const CpuIsa kIsaAvx512Bf16 = make_isa<Avx512Bf16, Avx512, BytesAvx512Vnni>();

}  // namespace lk::cpu
