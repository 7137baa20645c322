#include "quant/formats.h"

#include <limits>

#include "base/check.h"
#include "quant/formats/layouts.h"

namespace lk {

int element_bits(Element element) {
  switch (element) {
    case Element::kF32:
      return 32;
    case Element::kF16:
      return 16;
    case Element::kBF16:
      return 16;
    case Element::kE4M3:
      return 8;
    case Element::kE2M1:
      return 4;
  }
  LK_CHECK(!"element without a size");
  return 0;
}

float element_max(Element element) {
  switch (element) {
    case Element::kF32:
    case Element::kBF16:
      return std::numeric_limits<float>::max();
    case Element::kF16:
      return 65504.0f;
    case Element::kE4M3:
      return 448.0f;
    case Element::kE2M1:
      return 6.0f;
  }
  LK_CHECK(!"element without a largest magnitude");
  return 0;
}

std::span<const Format* const> all_formats() {
  static constexpr const Format* kFormats[] = {
      &kFormatF32,      &kFormatF16,   &kFormatBF16,  &kFormatFp8Tensor, &kFormatFp8Channel,
      &kFormatFp8Block, &kFormatMxfp8, &kFormatMxfp4, &kFormatNvfp4,     &kFormatNvfp4Divide};
  return kFormats;
}

const Format* find_format(std::string_view name) {
  for (const Format* format : all_formats()) {
    if (format->name == name) return format;
  }
  return nullptr;
}

std::span<const Layout* const> all_layouts() {
  static constexpr const Layout* kLayouts[] = {
      &kLayoutNvfp4,         &kLayoutNvfp4Divide,  &kLayoutMxfp4Packed, &kLayoutMxfp4Blocks,
      &kLayoutMxfp8,         &kLayoutFp8Tensor,    &kLayoutFp8Channel,  &kLayoutFp8Block,
      &kLayoutPackedInteger, &kLayoutBitsAndBytes, &kLayoutFp8E5M2,     &kLayoutBF16,
      &kLayoutF16,           &kLayoutF32,
  };
  return kLayouts;
}

}  // namespace lk
