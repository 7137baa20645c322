// flags: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c -mbmi2
#include "kernels/cpu/body/bytes_avx512.h"
#include "kernels/cpu/body/gemm_int8.h"
#include "kernels/cpu/body/simd_avx512.h"

namespace lk::cpu {

extern constinit const CpuProduct kInt8Avx512Vnni = {
    Avx512::kMaxTile, pack_tile_int8<Avx512>, panel_bytes_int8, gemm_int8<Avx512, BytesAvx512Vnni>};

}  // namespace lk::cpu
