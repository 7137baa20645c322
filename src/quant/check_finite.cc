#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/mmap_file.h"
#include "base/numeric.h"
#include "quant/detect.h"

namespace lk {
namespace {

// Bytes looked at between two looks at the result, and between two gifts of pages.
constexpr int64_t kBlock = 4096, kChunk = int64_t{8} << 20;

// Index of the first of `count` elements of type T for which `bad` holds, or -1. The inner loop has
// no exit, so that it becomes vector code.
template <typename T, typename Bad>
int64_t find_bad(const std::byte* data, int64_t count, Bad bad) {
  constexpr int64_t kStep = kBlock / static_cast<int64_t>(sizeof(T));
  for (int64_t begin = 0; begin < count; begin += kStep) {
    const int64_t end = std::min(count, begin + kStep);
    T any = 0;
    for (int64_t i = begin; i < end; ++i) {
      T bits;
      std::memcpy(&bits, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
      any = static_cast<T>(any | static_cast<T>(bad(bits)));
    }
    if (!any) continue;
    for (int64_t i = begin; i < end; ++i) {
      T bits;
      std::memcpy(&bits, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
      if (bad(bits)) return i;
    }
  }
  return -1;
}

// Any byte is a number in a packed type; only types that can hold NaN or infinity are read.
int64_t find_not_finite(DType dtype, const std::byte* data, int64_t count) {
  switch (dtype) {
    case DType::kBF16:
      return find_bad<uint16_t>(data, count, [](uint16_t b) { return (b & 0x7f80) == 0x7f80; });
    case DType::kF16:
      return find_bad<uint16_t>(data, count, [](uint16_t b) { return (b & 0x7c00) == 0x7c00; });
    case DType::kF32:
      return find_bad<uint32_t>(data, count,
                                [](uint32_t b) { return (b & 0x7f800000u) == 0x7f800000u; });
    case DType::kF8E4M3:
      return find_bad<uint8_t>(data, count, [](uint8_t b) { return (b & 0x7f) == 0x7f; });
    case DType::kF8E8M0:
      return find_bad<uint8_t>(data, count, [](uint8_t b) { return b == 255; });
    default:
      return -1;
  }
}

int64_t find_not_finite_dropping(const TensorView& tensor, DType dtype, bool mapped) {
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  const int64_t count = tensor.elements(), step = kChunk / size;
  for (int64_t begin = 0; begin < count; begin += step) {
    const int64_t n = std::min(step, count - begin);
    const std::byte* data = tensor.data + begin * size;
    const int64_t bad = find_not_finite(dtype, data, n);
    if (mapped) drop_mapped_pages(data, static_cast<size_t>(n * size));
    if (bad >= 0) return begin + bad;
  }
  return -1;
}

// E8M0 scales near the top can carry a code beyond float32's range: E2M1's 6 does from 2^126 on.
Status check_range(const StoredLinear& linear, const StoredTensor& scales) {
  const auto risky = [](uint8_t scale) { return scale >= 253; };
  if (find_bad<uint8_t>(scales.view.data, scales.view.elements(), risky) < 0) return {};
  const int64_t group = linear.format->group_cols;
  const int64_t row_scales = (linear.spec->in + group - 1) / group;
  std::vector<float> row(static_cast<size_t>(linear.spec->in));
  for (int e = 0; e < linear.expert_count(); ++e) {
    for (const StoredMatrix& matrix : linear.experts[static_cast<size_t>(e)]) {
      for (int64_t r = 0; r < matrix.rows; ++r) {
        if (find_bad<uint8_t>(matrix.scales + r * row_scales, row_scales, risky) < 0) continue;
        decode_row(*linear.format, matrix, r, row.data());
        const auto bad =
            std::find_if(row.begin(), row.end(), [](float value) { return !std::isfinite(value); });
        if (bad == row.end()) continue;
        return invalid("tensor {} scales a weight beyond float32 (expert {}, row {}, column {})",
                       scales.name, e, r, bad - row.begin());
      }
    }
  }
  return {};
}

}  // namespace

Status check_finite(const StoredLinear& linear) {
  for (const StoredTensor& tensor : linear.tensors) {
    if (!tensor.view.data) continue;
    const bool e8m0 =
        tensor.role == TensorRole::kScales && linear.format->scale == ScaleCodec::kE8M0;
    const int64_t bad = find_not_finite_dropping(
        tensor.view, e8m0 ? DType::kF8E8M0 : tensor.view.dtype, tensor.mapped);
    if (bad >= 0 && e8m0) {
      return invalid("tensor {} holds the scale 255, which is NaN, at index {}", tensor.name, bad);
    }
    if (bad >= 0) {
      return invalid("tensor {} holds NaN or infinity at index {}", tensor.name, bad);
    }
    if (e8m0) LK_RETURN_IF_ERROR(check_range(linear, tensor));
  }
  return {};
}

Status check_finite(const TensorView& tensor, std::string_view name, bool mapped) {
  if (!tensor.data) return {};
  const int64_t bad = find_not_finite_dropping(tensor, tensor.dtype, mapped);
  if (bad < 0) return {};
  return invalid("tensor {} holds NaN or infinity at index {}", name, bad);
}

}  // namespace lk
