// Fills a CpuIsa from the bodies for one instruction set.
#pragma once

#include "kernels/cpu/body/attention.h"
#include "kernels/cpu/body/elementwise.h"
#include "kernels/cpu/body/gemm.h"
#include "kernels/cpu/body/gemm_e4m3.h"
#include "kernels/cpu/body/gemm_int8.h"

namespace lk::cpu {
namespace {

// I: everything in floats; Exact: products that round no float32 activation; D: byte products.
template <class I, class Exact, class D>
constexpr CpuIsa make_isa() {
  return {I::kName,
          kBlockGroups * kScratchChannels * kRows,
          {{I::kMaxTile, pack_tile<I>, panel_bytes<I>, gemm<I>},
           {Exact::kMaxTile, pack_tile_int8<Exact>, panel_bytes_int8, gemm_int8<Exact, D>},
           {Exact::kMaxTile, pack_tile_e4m3<Exact>, panel_bytes<Exact>, gemm<Exact>}},
          shrink<I>,
          add_bias_lora<I>,
          clamped_swiglu<I>,
          swiglu<I>,
          rms_norm<I>,
          rope,
          attention<I>};
}

}  // namespace
}  // namespace lk::cpu
