#include "quant/formats.h"
#include "quant/formats/layouts.h"

namespace lk {

const Format kFormatF32{.name = "f32", .element = Element::kF32};

const Layout kLayoutF32{
    .name = "f32",
    .format = &kFormatF32,
    .claims = [](const NamedTensors& tensors) { return claims_plain(tensors, DType::kF32); },
    .read = [](NamedTensors& tensors) { return read_plain(tensors, DType::kF32); },
};

}  // namespace lk
