#include "quant/formats.h"
#include "quant/formats/layouts.h"

namespace lk {

const Format kFormatF16{.name = "f16", .element = Element::kF16};

const Layout kLayoutF16{
    .name = "f16",
    .format = &kFormatF16,
    .claims = [](const NamedTensors& tensors) { return claims_plain(tensors, DType::kF16); },
    .read = [](NamedTensors& tensors) { return read_plain(tensors, DType::kF16); },
};

}  // namespace lk
