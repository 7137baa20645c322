// MXFP4: E2M1 codes in groups of 32 with a power of two as scale. The tools differ in the power and
// in ties.
#include "quant/encode/elements.h"
#include "quant/encode/microscaling.h"
#include "quant/encode/targets.h"
#include "quant/formats.h"

namespace lk {
namespace {

// OpenAI's kernels, which Transformers calls: the smallest power of two with 2^E >= M / 6; codes to
// even, the sign of zero kept.
int exponent_up(float largest) {
  const uint32_t bits = std::bit_cast<uint32_t>(largest / 6.0f);
  return static_cast<int>((bits + 0x7fffffu) >> 23);
}
uint8_t code_signed(float value) {
  return static_cast<uint8_t>(encode_e2m1_magnitude(std::fabs(value)) |
                              (std::signbit(value) ? 8 : 0));
}

// ModelOpt: ceil(log2(M / 6)) in float32; ties to the smaller magnitude, and zero is code 8.
int exponent_log(float largest) { return microscaling_exponent_up(largest, 6.0f); }
uint8_t code_down(float value) {
  return static_cast<uint8_t>(encode_e2m1_magnitude_down(std::fabs(value)) | (value > 0 ? 0 : 8));
}

// compressed-tensors: floor(log2(M)) - 2, M raised where its mantissa is 1.75 or more; codes to
// even, zero has no sign.
int exponent_floor(float largest) { return microscaling_exponent_floor(largest, 2); }
uint8_t code_below_zero(float value) {
  return static_cast<uint8_t>(encode_e2m1_magnitude(std::fabs(value)) | (value < 0 ? 8 : 0));
}

template <int (*exponent)(float), uint8_t (*code)(float)>
void encode(const float* values, int64_t /*rows*/, int64_t cols, float /*tensor_scale*/,
            std::byte* codes, std::byte* scales) {
  for (int64_t g = 0; g * kMicroscalingGroup < cols; ++g) {
    const float* group = values + g * kMicroscalingGroup;
    const int byte = exponent(largest_magnitude(group, kMicroscalingGroup));
    scales[g] = static_cast<std::byte>(byte);
    const float factor = std::ldexp(1.0f, 127 - byte);
    float scaled[kMicroscalingGroup];
    for (int i = 0; i < kMicroscalingGroup; ++i) scaled[i] = group[i] * factor;
    pack_nibbles(scaled, kMicroscalingGroup, codes + g * kMicroscalingGroup / 2, code);
  }
}

}  // namespace

const Target kMxfp4GptOss{
    .format = "mxfp4",
    .recipe = "gpt-oss",
    .stored = &kFormatMxfp4,
    .encoder = {.encode = encode<exponent_up, code_signed>},
    .codes = "blocks",
    .scales = "scales",
    .blocks = true,
    .experts = ExpertForm::kFused,
    .scope = Scope::kExperts,
    .config_name = "mxfp4",
    .tool = &kTransformersMxfp4,
    .rounding = "the least 2^E >= max/6, ties to even",
};

const Target kMxfp4Transformers = [] {
  Target target = kMxfp4GptOss;
  target.recipe = "transformers";
  return target;
}();

const Target kMxfp4ModelOpt{
    .format = "mxfp4",
    .recipe = "modelopt",
    .stored = &kFormatMxfp4,
    .encoder = {.encode = encode<exponent_log, code_down>},
    .codes = "weight",
    .scales = "weight_scale",
    .config_name = "mxfp4",
    .tool = &kModelOpt,
    .rounding = "E = ceil(log2(max/6)), ties to the smaller magnitude",
};

const Target kMxfp4CompressedTensors{
    .format = "mxfp4",
    .recipe = "compressed-tensors",
    .stored = &kFormatMxfp4,
    .encoder = {.encode = encode<exponent_floor, code_below_zero>},
    .codes = "weight_packed",
    .scales = "weight_scale",
    .config_name = "mxfp4-pack-quantized",
    .tool = &kCompressedTensors,
    .rounding = "E = floor(log2(max)) - 2, one more from a mantissa of 1.75 on, ties to even",
};

}  // namespace lk
