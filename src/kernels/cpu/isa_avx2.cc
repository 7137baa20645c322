// flags: -mavx2 -mfma -mf16c -mbmi2
#include "kernels/cpu/body/bytes_avx2.h"
#include "kernels/cpu/body/simd_avx2.h"
#include "kernels/cpu/body/table.h"

namespace lk::cpu {

extern constinit const CpuIsa kIsaAvx2 = make_isa<Avx2, BytesAvx2>();

}  // namespace lk::cpu
