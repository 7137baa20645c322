// The list of weight formats, one row each (formats/<name>.cc). Static, immutable.
#pragma once

#include <span>

#include "quant/format.h"

namespace lk {

extern const Format kFormatF32, kFormatF16, kFormatBF16;
extern const Format kFormatFp8Tensor, kFormatFp8Channel, kFormatFp8Block, kFormatMxfp8;
extern const Format kFormatMxfp4, kFormatNvfp4, kFormatNvfp4Divide;

std::span<const Format* const> all_formats();
// Null if no format has that name.
const Format* find_format(std::string_view name);

}  // namespace lk
