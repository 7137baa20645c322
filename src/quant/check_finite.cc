#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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

// A norm sums squares in float32: of a weight from here on there is none.
constexpr double kTooLarge = 0x1p64;

// Any byte is a number in a packed type; only types that can hold NaN or infinity are read. Of
// `weights`, what is too large counts as well: one comparison of bits finds all three.
int64_t find_not_finite(DType dtype, const std::byte* data, int64_t count, bool weights) {
  switch (dtype) {
    case DType::kBF16: {
      const uint16_t limit = weights ? 0x5f80 : 0x7f80;
      return find_bad<uint16_t>(data, count, [=](uint16_t b) { return (b & 0x7fff) >= limit; });
    }
    case DType::kF16:
      return find_bad<uint16_t>(data, count, [](uint16_t b) { return (b & 0x7c00) == 0x7c00; });
    case DType::kF32: {
      const uint32_t limit = weights ? 0x5f800000u : 0x7f800000u;
      return find_bad<uint32_t>(data, count,
                                [=](uint32_t b) { return (b & 0x7fffffffu) >= limit; });
    }
    case DType::kF8E4M3:
      return find_bad<uint8_t>(data, count, [](uint8_t b) { return (b & 0x7f) == 0x7f; });
    case DType::kF8E8M0:
      return find_bad<uint8_t>(data, count, [](uint8_t b) { return b == 255; });
    default:
      return -1;
  }
}

int64_t find_not_finite_dropping(const TensorView& tensor, DType dtype, bool mapped,
                                 bool weights = false) {
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  const int64_t count = tensor.elements(), step = kChunk / size;
  for (int64_t begin = 0; begin < count; begin += step) {
    const int64_t n = std::min(step, count - begin);
    const std::byte* data = tensor.data + begin * size;
    const int64_t bad = find_not_finite(dtype, data, n, weights);
    if (mapped) drop_mapped_pages(data, static_cast<size_t>(n * size));
    if (bad >= 0) return begin + bad;
  }
  return -1;
}

// Sign bits of anything but zero.
int64_t find_negative(const TensorView& tensor) {
  const int64_t count = tensor.elements();
  switch (tensor.dtype) {
    case DType::kBF16:
    case DType::kF16:
      return find_bad<uint16_t>(tensor.data, count, [](uint16_t b) { return b > 0x8000; });
    case DType::kF32:
      return find_bad<uint32_t>(tensor.data, count, [](uint32_t b) { return b > 0x80000000u; });
    case DType::kF8E4M3:
      return find_bad<uint8_t>(tensor.data, count, [](uint8_t b) { return b > 0x80; });
    default:
      return -1;
  }
}

// The largest scale of a matrix, in whichever codec: positive numbers of one type order as their
// bits do.
float largest_scale(const Format& format, const StoredMatrix& matrix) {
  const int64_t count = matrix_scales(format, matrix.rows, matrix.cols);
  float largest = count > 0 ? 0.0f : 1.0f;
  if (format.scale == ScaleCodec::kE4M3) return 448.0f;
  if (format.scale == ScaleCodec::kE8M0) {
    uint8_t byte = 0;
    for (int64_t i = 0; i < count; ++i) {
      byte = std::max(byte, static_cast<uint8_t>(matrix.scales[i]));
    }
    return e8m0_to_f32(byte);
  }
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, decode_scale(format, matrix, i));
  return largest;
}

bool holds(const StoredTensor& tensor, const std::byte* byte) {
  return tensor.view.data <= byte && byte < tensor.view.data + tensor.view.bytes();
}

// The tensor that says how large a matrix's weights are: its tensor scale, or its scales where it
// has none of that, or its codes where it has neither.
std::string_view name_of_magnitude(const StoredLinear& linear, const StoredMatrix& matrix) {
  std::string_view codes, best;
  for (const StoredTensor& tensor : linear.tensors) {
    if (matrix.scales && linear.format->tensor_scale == TensorScale::kNone &&
        tensor.role == TensorRole::kScales && holds(tensor, matrix.scales)) {
      return tensor.name;
    }
    if (tensor.role == TensorRole::kCodes && holds(tensor, matrix.codes)) codes = tensor.name;
  }
  // A tensor scale is read to a number; of all those of the linear, that of the same module.
  size_t longest = 0;
  for (const StoredTensor& tensor : linear.tensors) {
    if (tensor.role != TensorRole::kTensorScale) continue;
    const auto same = static_cast<size_t>(
        std::mismatch(codes.begin(), codes.end(), tensor.name.begin(), tensor.name.end()).first -
        codes.begin());
    if (same < longest || (same == longest && !best.empty())) continue;
    best = tensor.name;
    longest = same;
  }
  return best.empty() ? codes : best;
}

// Whether any weight of the matrix is too large, and which. Codes are read only where the largest
// one under the largest scale would be.
Status check_range(const StoredLinear& linear, int expert, const StoredMatrix& matrix,
                   std::vector<float>& row) {
  const Format& format = *linear.format;
  const double top = double{largest_scale(format, matrix)} * tensor_factor(format, matrix);
  if (top * element_max(format.element) < kTooLarge) return {};
  for (int64_t r = 0; r < matrix.rows; ++r) {
    decode_row(format, matrix, r, row.data());
    const auto bad = std::find_if(row.begin(), row.end(),
                                  [](float value) { return !(std::fabs(value) < kTooLarge); });
    if (bad == row.end()) continue;
    return invalid(
        "tensor {} makes a weight {}, whose square is beyond float32 (expert {}, row {}, column "
        "{})",
        name_of_magnitude(linear, matrix), *bad, expert, r, bad - row.begin());
  }
  return {};
}

Status check_range(const StoredLinear& linear) {
  std::vector<float> row(static_cast<size_t>(linear.spec->in));
  for (int e = 0; e < linear.expert_count(); ++e) {
    for (const StoredMatrix& matrix : linear.experts[static_cast<size_t>(e)]) {
      LK_RETURN_IF_ERROR(check_range(linear, e, matrix, row));
    }
  }
  return {};
}

}  // namespace

Status check_finite(const StoredLinear& linear) {
  for (const StoredTensor& tensor : linear.tensors) {
    if (!tensor.view.data) continue;
    const bool scales = tensor.role == TensorRole::kScales;
    const bool e8m0 = scales && linear.format->scale == ScaleCodec::kE8M0;
    const int64_t bad =
        find_not_finite_dropping(tensor.view, e8m0 ? DType::kF8E8M0 : tensor.view.dtype,
                                 tensor.mapped, tensor.role == TensorRole::kCodes);
    if (bad >= 0 && e8m0) {
      return invalid("tensor {} holds the scale 255, which is NaN, at index {}", tensor.name, bad);
    }
    if (bad >= 0) {
      const float value = load_f32(tensor.view, bad);
      if (!std::isfinite(value))
        return invalid("tensor {} holds NaN or infinity at index {}", tensor.name, bad);
      return invalid("tensor {} holds the weight {} at index {}, whose square is beyond float32",
                     tensor.name, value, bad);
    }
    if (!scales) continue;
    if (const int64_t negative = find_negative(tensor.view); negative >= 0) {
      return invalid("tensor {} holds the scale {} at index {}, which is negative", tensor.name,
                     load_f32(tensor.view, negative), negative);
    }
  }
  const bool has_data = !linear.tensors.empty() && linear.tensors.front().view.data;
  return has_data && is_quantized(*linear.format) ? check_range(linear) : Status();
}

Status check_finite(const TensorView& tensor, std::string_view name, bool mapped) {
  if (!tensor.data) return {};
  const int64_t bad = find_not_finite_dropping(tensor, tensor.dtype, mapped);
  if (bad < 0) return {};
  return invalid("tensor {} holds NaN or infinity at index {}", name, bad);
}

}  // namespace lk
