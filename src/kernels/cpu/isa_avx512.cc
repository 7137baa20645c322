// flags: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mbmi2
#include "kernels/cpu/body/bytes_avx512.h"
#include "kernels/cpu/body/simd_avx512.h"
#include "kernels/cpu/body/table.h"

namespace lk::cpu {

extern constinit const CpuIsa kIsaAvx512 = make_isa<Avx512, BytesAvx512>();

}  // namespace lk::cpu
