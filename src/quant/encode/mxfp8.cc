// MXFP8: E4M3 codes in groups of 32 with a power of two as scale.
#include "quant/encode/elements.h"
#include "quant/encode/microscaling.h"
#include "quant/encode/targets.h"
#include "quant/formats.h"

namespace lk {
namespace {

int exponent_log(float largest) { return microscaling_exponent_up(largest, 448.0f); }
int exponent_floor(float largest) { return microscaling_exponent_floor(largest, 8); }

template <int (*exponent)(float)>
void encode(const float* values, int64_t /*rows*/, int64_t cols, float /*tensor_scale*/,
            std::byte* codes, std::byte* scales) {
  for (int64_t g = 0; g * kMicroscalingGroup < cols; ++g) {
    const float* group = values + g * kMicroscalingGroup;
    const int byte = exponent(largest_magnitude(group, kMicroscalingGroup));
    scales[g] = static_cast<std::byte>(byte);
    const float factor = std::ldexp(1.0f, 127 - byte);
    for (int i = 0; i < kMicroscalingGroup; ++i) {
      codes[g * kMicroscalingGroup + i] = static_cast<std::byte>(encode_e4m3(group[i] * factor));
    }
  }
}

}  // namespace

const Target kMxfp8ModelOpt{
    .format = "mxfp8",
    .recipe = "modelopt",
    .stored = &kFormatMxfp8,
    .encoder = {.encode = encode<exponent_log>},
    .codes = "weight",
    .scales = "weight_scale",
    .codes_dtype = DType::kF8E4M3,
    .config_name = "MXFP8",
    .tool = &kModelOpt,
    .rounding = "E = ceil(log2(max/448)), ties to even",
};

const Target kMxfp8CompressedTensors{
    .format = "mxfp8",
    .recipe = "compressed-tensors",
    .stored = &kFormatMxfp8,
    .encoder = {.encode = encode<exponent_floor>},
    .codes = "weight",
    .scales = "weight_scale",
    .codes_dtype = DType::kF8E4M3,
    .config_name = "mxfp8-quantized",
    .tool = &kCompressedTensors,
    .rounding = "E = floor(log2(max)) - 8, one more from a mantissa of 1.75 on, ties to even",
};

}  // namespace lk
