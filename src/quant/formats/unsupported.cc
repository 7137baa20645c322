// Published forms that no kernel reads: recognised so that the refusal can name them.
#include "quant/formats/layouts.h"

namespace lk {
const Layout kLayoutPackedInteger{
    .name = "packed integers (GPTQ, AWQ or compressed-tensors)",
    .format = nullptr,
    .claims =
        [](const NamedTensors& t) {
          return first_part(t, {"qweight", "weight_packed"});
        },
    .read = nullptr,
};

const Layout kLayoutBitsAndBytes{
    .name = "bitsandbytes",
    .format = nullptr,
    .claims =
        [](const NamedTensors& t) {
          return first_part(t, {"weight.absmax", "SCB"});
        },
    .read = nullptr,
};

const Layout kLayoutFp8E5M2{
    .name = "FP8 E5M2",
    .format = nullptr,
    .claims = [](const NamedTensors& t) -> std::string_view {
      return is_dtype(t, "weight", DType::kF8E5M2) ? "weight" : "";
    },
    .read = nullptr,
};

}  // namespace lk
