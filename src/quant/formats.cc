#include "quant/formats.h"

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

std::span<const Format* const> all_formats() {
  static constexpr const Format* kFormats[] = {&kFormatF32, &kFormatF16, &kFormatBF16,
                                               &kFormatMxfp4};
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
      &kLayoutNvfp4ModelOpt, &kLayoutNvfp4CompressedTensors,
      &kLayoutMxfp4Packed,   &kLayoutMxfp4Blocks,
      &kLayoutFp8Block,      &kLayoutFp8,
      &kLayoutPackedInteger, &kLayoutBitsAndBytes,
      &kLayoutBF16,          &kLayoutF16,
      &kLayoutF32,
  };
  return kLayouts;
}

}  // namespace lk
