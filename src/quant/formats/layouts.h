// Every layout that a format's file defines, for the ordered table in formats.cc.
#pragma once

#include <span>

#include "quant/layout.h"

namespace lk {

extern const Layout kLayoutF32, kLayoutF16, kLayoutBF16;
extern const Layout kLayoutFp8Tensor, kLayoutFp8Channel, kLayoutFp8Block, kLayoutMxfp8;
extern const Layout kLayoutMxfp4Blocks, kLayoutMxfp4Packed, kLayoutNvfp4, kLayoutNvfp4Divide;
// Published forms that are recognised, to be refused by name (unsupported.cc).
extern const Layout kLayoutPackedInteger, kLayoutBitsAndBytes, kLayoutFp8E5M2;

}  // namespace lk
