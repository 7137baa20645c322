// FP8: E4M3 codes with a float32 scale for blocks, rows or the whole matrix.
#include <cstring>
#include <limits>

#include "quant/encode/elements.h"
#include "quant/encode/targets.h"
#include "quant/formats.h"

namespace lk {
namespace {

constexpr float kMax = 448.0f;

// A scale as the file has it, and what values are multiplied or divided by.
struct Scale {
  float stored, factor;
};

// Transformers multiplies by 448 / M (as torch computes it: by the reciprocal of M) and stores the
// reciprocal of that; zeros have 1.
Scale transformers_scale(float largest) {
  if (largest == 0) return {1.0f, 1.0f};
  // Beyond float32 the tool's factor would be infinite; tiny values keep the largest there is.
  const float factor = std::min(1.0f / largest * kMax, std::numeric_limits<float>::max());
  return {1.0f / factor, factor};
}
float times(float value, Scale scale) { return value * scale.factor; }

// compressed-tensors divides by M / 448; a scale that is zero becomes float32's epsilon.
Scale compressed_tensors_scale(float largest) {
  const float scale = largest / kMax;
  const float stored = scale == 0 ? std::numeric_limits<float>::epsilon() : scale;
  return {stored, stored};
}
float over(float value, Scale scale) { return value / scale.factor; }

template <Scale (*scale_of)(float), float (*scaled)(float, Scale)>
void encode_block(const float* values, int64_t rows, int64_t cols, float /*tensor_scale*/,
                  std::byte* codes, std::byte* scales) {
  const int64_t width = kFormatFp8Block.group_cols;
  for (int64_t begin = 0; begin < cols; begin += width) {
    const int64_t n = std::min(width, cols - begin);
    float largest = 0;
    for (int64_t r = 0; r < rows; ++r) {
      largest = std::max(largest, largest_magnitude(values + r * cols + begin, n));
    }
    const Scale scale = scale_of(largest);
    std::memcpy(scales + begin / width * static_cast<int64_t>(sizeof(float)), &scale.stored,
                sizeof(float));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = r * cols + begin; i < r * cols + begin + n; ++i) {
        codes[i] = static_cast<std::byte>(encode_e4m3(scaled(values[i], scale)));
      }
    }
  }
}

void encode_row(const float* values, int64_t /*rows*/, int64_t cols, float /*tensor_scale*/,
                std::byte* codes, std::byte* scales) {
  const Scale scale = compressed_tensors_scale(largest_magnitude(values, cols));
  std::memcpy(scales, &scale.stored, sizeof(float));
  for (int64_t i = 0; i < cols; ++i) {
    codes[i] = static_cast<std::byte>(encode_e4m3(over(values[i], scale)));
  }
}

float compressed_tensors_tensor_scale(float largest) {
  return compressed_tensors_scale(largest).stored;
}
// A matrix of zeros has no scale of its own (the tool divides by zero there): 1.
float modelopt_tensor_scale(float largest) {
  const float scale = largest / kMax;
  return scale > 0 ? scale : 1.0f;
}

void divide_by_tensor_scale(const float* values, int64_t /*rows*/, int64_t cols, float tensor_scale,
                            std::byte* codes, std::byte* /*scales*/) {
  for (int64_t i = 0; i < cols; ++i) {
    codes[i] = static_cast<std::byte>(encode_e4m3(values[i] / tensor_scale));
  }
}

}  // namespace

const Target kFp8BlockTransformers{
    .format = "fp8-block",
    .recipe = "transformers",
    .stored = &kFormatFp8Block,
    .encoder = {.encode = encode_block<transformers_scale, times>},
    .codes = "weight",
    .scales = "weight_scale_inv",
    .codes_dtype = DType::kF8E4M3,
    .scales_dtype = DType::kF32,
    .config_name = "fp8",
    .tool = &kTransformersFp8,
    .rounding = "128 x 128 blocks, codes of w x (448/max), ties to even",
};

const Target kFp8BlockCompressedTensors{
    .format = "fp8-block",
    .recipe = "compressed-tensors",
    .stored = &kFormatFp8Block,
    .encoder = {.encode = encode_block<compressed_tensors_scale, over>},
    .codes = "weight",
    .scales = "weight_scale",
    .codes_dtype = DType::kF8E4M3,
    .scales_dtype = DType::kF32,
    .config_name = "float-quantized",
    .tool = &kCompressedTensors,
    .rounding = "128 x 128 blocks, codes of w / (max/448), ties to even",
};

const Target kFp8ChannelCompressedTensors{
    .format = "fp8-channel",
    .recipe = "compressed-tensors",
    .stored = &kFormatFp8Channel,
    .encoder = {.encode = encode_row},
    .codes = "weight",
    .scales = "weight_scale",
    .codes_dtype = DType::kF8E4M3,
    .scales_dtype = DType::kF32,
    .config_name = "float-quantized",
    .tool = &kCompressedTensors,
    .rounding = "rows, codes of w / (max/448), ties to even",
};

const Target kFp8TensorCompressedTensors{
    .format = "fp8-tensor",
    .recipe = "compressed-tensors",
    .stored = &kFormatFp8Tensor,
    .encoder = {.tensor_scale = compressed_tensors_tensor_scale, .encode = divide_by_tensor_scale},
    .codes = "weight",
    .tensor_scale = "weight_scale",
    .codes_dtype = DType::kF8E4M3,
    .tensor_scale_shape = {1},
    .config_name = "float-quantized",
    .tool = &kCompressedTensors,
    .rounding = "one scale max/448, ties to even; activations dynamic",
};

const Target kFp8TensorModelOpt{
    .format = "fp8-tensor",
    .recipe = "modelopt",
    .stored = &kFormatFp8Tensor,
    .encoder = {.tensor_scale = modelopt_tensor_scale, .encode = divide_by_tensor_scale},
    .codes = "weight",
    .tensor_scale = "weight_scale",
    .codes_dtype = DType::kF8E4M3,
    .shared_tensor_scale = true,
    .config_name = "FP8",
    .tool = &kModelOpt,
    .rounding = "one scale max/448, ties to even; no input_scale, which takes calibration",
};

}  // namespace lk
