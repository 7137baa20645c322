// Weight formats as points of one space: element codec x scale codec x group shape x tensor scale.
// Immutable rows of a static table (formats.h); compared by address.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lk {

enum class Element : uint8_t { kF32, kF16, kBF16, kE4M3, kE2M1 };
enum class ScaleCodec : uint8_t {
  kNone,
  kE8M0,
  kE4M3,
  kFloat /* F32, F16 or BF16 by tensor dtype */
};
// A float32 for a whole matrix, by which the scales are multiplied or divided.
enum class TensorScale : uint8_t { kNone, kMultiply, kDivide };

struct Format {
  std::string_view name;  // "bf16", "mxfp4", ...
  Element element;
  ScaleCodec scale = ScaleCodec::kNone;
  int group_rows = 1;  // rows that share a scale; 0: all rows
  int group_cols = 0;  // consecutive input channels that share a scale; 0: all
  TensorScale tensor_scale = TensorScale::kNone;
  // What quantization recipes call it, in lower case: a quant_method of Transformers, quant_algos
  // of ModelOpt. compressed-tensors describes the parts instead.
  std::array<std::string_view, 4> recipe_names{};
  // compressed-tensors' words for the way its tensors lie in the file; none: no way of its.
  std::array<std::string_view, 2> packings{};
};

inline bool is_quantized(const Format& format) {
  return format.element == Element::kE4M3 || format.element == Element::kE2M1;
}

// Bits of one element's code.
int element_bits(Element element);
// The largest magnitude that a code stands for.
float element_max(Element element);
// Bytes of `count` codes of one row (two E2M1 codes a byte, even element in the low nibble).
inline int64_t code_bytes(Element element, int64_t count) {
  return (count * element_bits(element) + 7) / 8;
}

}  // namespace lk
