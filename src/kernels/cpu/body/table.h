// Fills a CpuIsa from the bodies for one instruction set.
#pragma once

#include "kernels/cpu/body/attention.h"
#include "kernels/cpu/body/elementwise.h"
#include "kernels/cpu/body/gemm.h"

namespace lk::cpu {
namespace {

template <class I>
constexpr CpuIsa make_isa() {
  return {I::kName,
          I::kMaxTile,
          kBlockGroups * kScratchChannels * kRows,
          pack_tile<I>,
          panel_bytes<I>,
          gemm<I>,
          shrink<I>,
          add_bias_lora<I>,
          clamped_swiglu<I>,
          rms_norm<I>,
          rope,
          attention<I>};
}

}  // namespace
}  // namespace lk::cpu
