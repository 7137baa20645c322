// Fills a CpuIsa from the bodies for one instruction set.
#pragma once

#include <type_traits>

#include "kernels/cpu/body/attention.h"
#include "kernels/cpu/body/elementwise.h"
#include "kernels/cpu/body/gemm.h"
#include "kernels/cpu/body/gemm_e4m3.h"
#include "kernels/cpu/body/gemm_int8.h"
#include "kernels/cpu/body/scan.h"

namespace lk::cpu {
namespace {

// I: everything in floats.
template <class I>
constexpr CpuProduct make_product() {
  return {I::kMaxTile, pack_tile<I>, panel_bytes<I>, gemm<I>};
}

// D: products of bytes; void where the rounded forms are another instruction set's.
template <class I, class D>
constexpr CpuIsa make_isa() {
  CpuProduct int8{}, e4m3{};
  if constexpr (!std::is_void_v<D>) {
    int8 = {I::kMaxTile, pack_tile_int8<I>, panel_bytes_int8, gemm_int8<I, D>};
    e4m3 = make_product<I>();
    e4m3.pack_tile = pack_tile_e4m3<I>;
  }
  return {I::kName,
          kBlockGroups * kScratchChannels * kRows,
          I::kScanVectors * kRows,
          {make_product<I>(), int8, e4m3},
          shrink<I>,
          add_bias_lora<I>,
          clamped_swiglu<I>,
          swiglu<I>,
          relu2<I>,
          rms_norm<I>,
          rope,
          attention<I>,
          convolve<I>,
          scan<I>,
          unit_length<I>,
          gate_silu<I>,
          gate_sigmoid<I>,
          add_scaled<I>};
}

}  // namespace
}  // namespace lk::cpu
