// A typed, shaped, non-owning view of tensor bytes, as they lie in a file. Cheap to copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lk {

// Element types of safetensors files.
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
};

// Bytes of one element.
size_t dtype_size(DType dtype);
// Name as safetensors spells it ("BF16", "F8_E4M3", ...).
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

using Shape = std::vector<int64_t>;
std::string shape_string(const Shape& shape);  // "[32, 2880]"

struct TensorView {
  const std::byte* data = nullptr;  // may be null in a header-only checkpoint
  DType dtype = DType::kF32;
  Shape shape;

  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_size(dtype); }
};

// Element i of a floating-point tensor (F64 F32 F16 BF16 F8_E4M3 F8_E8M0) as float32. Safe for
// unaligned data.
float load_f32(const TensorView& tensor, int64_t i);

}  // namespace lk
