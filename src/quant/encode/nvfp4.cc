// NVFP4: E2M1 codes in groups of 16 with an E4M3 scale, and a float32 scale of the whole matrix,
// which multiplies (ModelOpt) or divides (compressed-tensors).
#include <limits>

#include "base/numeric.h"
#include "quant/encode/elements.h"
#include "quant/encode/targets.h"
#include "quant/formats.h"

namespace lk {
namespace {

constexpr int kGroup = 16;
constexpr float kE2m1Max = 6.0f, kE4m3Max = 448.0f;

// Both tools round ties to even and give zero no sign.
uint8_t code(float value) {
  return static_cast<uint8_t>(encode_e2m1_magnitude(std::fabs(value)) | (value < 0 ? 8 : 0));
}

// A factor for all of `group`, then codes.
void encode_group(const float* group, float divisor, std::byte* codes) {
  float scaled[kGroup];
  for (int i = 0; i < kGroup; ++i) scaled[i] = group[i] / divisor;
  pack_nibbles(scaled, kGroup, codes, code);
}

// A matrix of zeros has no scale of its own (the tool divides by zero there): 1. Nor may the scale
// of tiny ones vanish.
float modelopt_tensor_scale(float largest) {
  const float scale = largest / (kE2m1Max * kE4m3Max);
  return scale > 0 ? scale : (largest > 0 ? std::numeric_limits<float>::denorm_min() : 1.0f);
}

void modelopt(const float* values, int64_t /*rows*/, int64_t cols, float tensor_scale,
              std::byte* codes, std::byte* scales) {
  for (int64_t g = 0; g * kGroup < cols; ++g) {
    const float* group = values + g * kGroup;
    float scale = largest_magnitude(group, kGroup) / (kE2m1Max * tensor_scale);
    if (scale == 0) scale = 1.0f;
    const uint8_t byte = encode_e4m3(std::clamp(scale, 0x1p-9f, kE4m3Max));
    scales[g] = static_cast<std::byte>(byte);
    encode_group(group, e4m3_to_f32(byte) * tensor_scale, codes + g * kGroup / 2);
  }
}

// 2688 / largest as torch computes it: by the reciprocal.
float compressed_tensors_scale(float largest) {
  const float reciprocal = 1.0f / std::max(largest, std::numeric_limits<float>::min());
  const float scale = reciprocal * (kE4m3Max * kE2m1Max);
  return std::isinf(scale) ? 1.0f : scale;
}

void compressed_tensors(const float* values, int64_t /*rows*/, int64_t cols, float tensor_scale,
                        std::byte* codes, std::byte* scales) {
  constexpr float kNoScale = 0.125f;  // in place of a scale that is zero
  for (int64_t g = 0; g * kGroup < cols; ++g) {
    const float* group = values + g * kGroup;
    const float scale = tensor_scale * (largest_magnitude(group, kGroup) / kE2m1Max);
    uint8_t byte = encode_e4m3(scale);
    if (byte == 0) byte = encode_e4m3(kNoScale);
    scales[g] = static_cast<std::byte>(byte);
    encode_group(group, e4m3_to_f32(byte) / tensor_scale, codes + g * kGroup / 2);
  }
}

}  // namespace

const Target kNvfp4ModelOpt{
    .format = "nvfp4",
    .recipe = "modelopt",
    .stored = &kFormatNvfp4,
    .encoder = {.tensor_scale = modelopt_tensor_scale, .encode = modelopt},
    .codes = "weight",
    .scales = "weight_scale",
    .tensor_scale = "weight_scale_2",
    .scales_dtype = DType::kF8E4M3,
    .shared_tensor_scale = true,
    .config_name = "W4A16_NVFP4",
    .tool = &kModelOpt,
    .rounding = "tensor scale max/2688, group scales max/(6 x tensor scale) in E4M3, ties to even",
};

const Target kNvfp4CompressedTensors{
    .format = "nvfp4",
    .recipe = "compressed-tensors",
    .stored = &kFormatNvfp4Divide,
    .encoder = {.tensor_scale = compressed_tensors_scale, .encode = compressed_tensors},
    .codes = "weight_packed",
    .scales = "weight_scale",
    .tensor_scale = "weight_global_scale",
    .scales_dtype = DType::kF8E4M3,
    .tensor_scale_shape = {1},
    .shared_tensor_scale = true,
    .config_name = "nvfp4-pack-quantized",
    .tool = &kCompressedTensors,
    .rounding = "global scale 2688/max, group scales global x max/6 in E4M3, ties to even",
};

}  // namespace lk
