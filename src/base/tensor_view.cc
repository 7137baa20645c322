#include "base/tensor_view.h"

#include <fmt/ranges.h>

#include <cstring>

#include "base/check.h"
#include "base/numeric.h"

namespace lk {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  size_t size;
};

constexpr DTypeRow kDTypes[] = {
    {DType::kBool, "BOOL", 1},      {DType::kU8, "U8", 1},          {DType::kI8, "I8", 1},
    {DType::kI16, "I16", 2},        {DType::kU16, "U16", 2},        {DType::kI32, "I32", 4},
    {DType::kU32, "U32", 4},        {DType::kI64, "I64", 8},        {DType::kU64, "U64", 8},
    {DType::kF16, "F16", 2},        {DType::kBF16, "BF16", 2},      {DType::kF32, "F32", 4},
    {DType::kF64, "F64", 8},        {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kF8E8M0, "F8_E8M0", 1},
};

const DTypeRow& row(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

template <typename T>
T load(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

size_t dtype_size(DType dtype) { return row(dtype).size; }
std::string_view dtype_name(DType dtype) { return row(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeRow& r : kDTypes) {
    if (r.name == name) return r.dtype;
  }
  return std::nullopt;
}

std::string shape_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

int64_t TensorView::elements() const {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

float load_f32(const TensorView& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kF64:
      return static_cast<float>(load<double>(tensor.data, i));
    case DType::kF32:
      return load<float>(tensor.data, i);
    case DType::kF16:
      return f16_to_f32(load<uint16_t>(tensor.data, i));
    case DType::kBF16:
      return bf16_to_f32(load<uint16_t>(tensor.data, i));
    case DType::kF8E4M3:
      return e4m3_to_f32(load<uint8_t>(tensor.data, i));
    case DType::kF8E8M0:
      return e8m0_to_f32(load<uint8_t>(tensor.data, i));
    default:
      LK_CHECK(!"load_f32 of a type that is not floating-point");
  }
  return 0;
}

}  // namespace lk
