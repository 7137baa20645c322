#include "quant/stored_linear.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/numeric.h"

namespace lk {
namespace {

template <typename T>
T load(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float decode_element(Element element, const std::byte* codes, int64_t i) {
  switch (element) {
    case Element::kF32:
      return load<float>(codes, i);
    case Element::kF16:
      return f16_to_f32(load<uint16_t>(codes, i));
    case Element::kBF16:
      return bf16_to_f32(load<uint16_t>(codes, i));
    case Element::kE4M3:
      return e4m3_to_f32(load<uint8_t>(codes, i));
    case Element::kE2M1: {
      const auto pair = load<uint8_t>(codes, i / 2);
      return kE2m1[i % 2 == 0 ? pair & 15 : pair >> 4];
    }
  }
  LK_CHECK(!"element without a decoder");
  return 0;
}

int64_t groups(int64_t extent, int64_t group) {
  return group == 0 ? 1 : (extent + group - 1) / group;
}

}  // namespace

float decode_scale(const Format& format, const StoredMatrix& matrix, int64_t i) {
  switch (format.scale) {
    case ScaleCodec::kNone:
      return 1.0f;
    case ScaleCodec::kE8M0:
      return e8m0_to_f32(load<uint8_t>(matrix.scales, i));
    case ScaleCodec::kE4M3:
      return e4m3_to_f32(load<uint8_t>(matrix.scales, i));
    case ScaleCodec::kFloat:
      return load_f32({matrix.scales, matrix.scale_dtype, {}}, i);
  }
  LK_CHECK(!"scale codec without a decoder");
  return 0;
}

float tensor_factor(const Format& format, const StoredMatrix& matrix) {
  return format.tensor_scale == TensorScale::kDivide ? 1.0f / matrix.tensor_scale
                                                     : matrix.tensor_scale;
}

int64_t row_scales(const Format& format, int64_t cols) {
  return format.scale == ScaleCodec::kNone ? 0 : groups(cols, format.group_cols);
}

int64_t matrix_scales(const Format& format, int64_t rows, int64_t cols) {
  return groups(rows, format.group_rows) * row_scales(format, cols);
}

StoredRow stored_row(const StoredLinear& linear, int expert, int64_t row) {
  const std::vector<StoredMatrix>& parts = linear.experts[static_cast<size_t>(expert)];
  if (parts.size() == 1) return {&parts[0], row};
  const StoredMatrix& gate = parts[0];
  if (linear.spec->row_order == RowOrder::kInterleavedGateUp) {
    return {&parts[static_cast<size_t>(row % 2)], row / 2};
  }
  return row < gate.rows ? StoredRow{&gate, row} : StoredRow{&parts[1], row - gate.rows};
}

void decode_row(const Format& format, const StoredMatrix& matrix, int64_t row, float* out) {
  const int64_t cols = matrix.cols;
  if (matrix.transposed) {
    for (int64_t c = 0; c < cols; ++c) {
      out[c] = decode_element(format.element, matrix.codes, c * matrix.rows + row);
    }
    return;
  }
  const std::byte* codes = matrix.codes + row * matrix.row_bytes;
  const int64_t group = format.group_cols == 0 ? cols : format.group_cols;
  const int64_t row_groups = groups(cols, format.group_cols);
  const int64_t first = format.group_rows == 0 ? 0 : row / format.group_rows * row_groups;
  for (int64_t g = 0; g < row_groups; ++g) {
    const float group_scale = decode_scale(format, matrix, first + g);
    const float scale = format.tensor_scale == TensorScale::kDivide
                            ? group_scale / matrix.tensor_scale
                            : group_scale * matrix.tensor_scale;
    const int64_t end = std::min(cols, (g + 1) * group);
    for (int64_t c = g * group; c < end; ++c) {
      out[c] = decode_element(format.element, codes, c) * scale;
    }
  }
}

float input_scale(const StoredLinear& linear, int expert) {
  float largest = 0;
  for (const StoredMatrix& matrix : linear.experts[expert])
    largest = std::max(largest, matrix.input_scale);
  return largest;
}

float stored_bias(const StoredLinear& linear, int expert, int64_t row) {
  if (linear.bias.shape.empty()) return 0.0f;
  return load_f32(linear.bias, expert * linear.spec->out + row);
}

}  // namespace lk
