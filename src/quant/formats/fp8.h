// What the FP8 formats with scales in floating point share: E4M3 codes in `weight`, and scales
// whose shape tells the format. Stateless.
#pragma once

#include <string_view>

#include "quant/layout.h"

namespace lk {

// The part that holds the scales of a linear whose `weight` is E4M3: "weight_scale", or
// "weight_scale_inv", which multiplies all the same. If there is none, the one that the
// checkpoint's other modules have.
std::string_view fp8_scale_part(const NamedTensors& tensors);

// Shapes of the three forms, fused experts in front.
std::vector<Shape> fp8_channel_shapes(const NamedTensors& tensors);  // [rows, 1], or [rows]
Shape fp8_block_shape(const NamedTensors& tensors);

enum class Fp8Scales : uint8_t { kNone, kTensor, kChannel, kBlock };
// What the shapes say; kNone where there are no E4M3 codes. Scales of no known shape count as
// blocks, whose reader refuses them.
Fp8Scales fp8_scales(const NamedTensors& tensors);

Result<TensorView> take_fp8_codes(NamedTensors& tensors);

}  // namespace lk
