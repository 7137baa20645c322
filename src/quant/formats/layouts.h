// Every layout that a format's file defines, for the ordered table in formats.cc.
#pragma once

#include <span>

#include "quant/layout.h"

namespace lk {

extern const Layout kLayoutF32, kLayoutF16, kLayoutBF16;
extern const Layout kLayoutMxfp4Blocks, kLayoutMxfp4Packed;
// Published forms that are recognised, to be refused by name (unsupported.cc).
extern const Layout kLayoutNvfp4ModelOpt, kLayoutNvfp4CompressedTensors, kLayoutFp8Block,
    kLayoutFp8, kLayoutPackedInteger, kLayoutBitsAndBytes;

}  // namespace lk
