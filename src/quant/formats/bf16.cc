#include "quant/formats.h"
#include "quant/formats/layouts.h"

namespace lk {

const Format kFormatBF16{.name = "bf16", .element = Element::kBF16};

const Layout kLayoutBF16{
    .name = "bf16",
    .format = &kFormatBF16,
    .claims = [](const NamedTensors& tensors) { return claims_plain(tensors, DType::kBF16); },
    .read = [](NamedTensors& tensors) { return read_plain(tensors, DType::kBF16); },
};

}  // namespace lk
