// Published forms that no kernel reads: recognised so that the refusal can name them.
#include "quant/formats/layouts.h"

namespace lk {
namespace {

std::string_view first_of(const NamedTensors& tensors, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (tensors.find(part)) return part;
  }
  return "";
}

}  // namespace

const Layout kLayoutNvfp4ModelOpt{
    .name = "NVFP4 (ModelOpt)",
    .format = nullptr,
    .claims = [](const NamedTensors& t) { return first_of(t, {"weight_scale_2"}); },
    .read = nullptr,
};

const Layout kLayoutNvfp4CompressedTensors{
    .name = "NVFP4 (compressed-tensors)",
    .format = nullptr,
    .claims = [](const NamedTensors& t) { return first_of(t, {"weight_global_scale"}); },
    .read = nullptr,
};

const Layout kLayoutFp8Block{
    .name = "FP8 with block scales",
    .format = nullptr,
    .claims =
        [](const NamedTensors& t) {
          return first_of(t, {"weight_scale_inv", "scale_inv"});
        },
    .read = nullptr,
};

const Layout kLayoutFp8{
    .name = "FP8",
    .format = nullptr,
    .claims = [](const NamedTensors& t) -> std::string_view {
      const TensorView* weight = t.find("weight");
      const bool fp8 =
          weight && (weight->dtype == DType::kF8E4M3 || weight->dtype == DType::kF8E5M2);
      return fp8 ? "weight" : "";
    },
    .read = nullptr,
};

const Layout kLayoutPackedInteger{
    .name = "packed integers (GPTQ, AWQ or compressed-tensors)",
    .format = nullptr,
    .claims =
        [](const NamedTensors& t) {
          return first_of(t, {"qweight", "weight_packed"});
        },
    .read = nullptr,
};

const Layout kLayoutBitsAndBytes{
    .name = "bitsandbytes",
    .format = nullptr,
    .claims =
        [](const NamedTensors& t) {
          return first_of(t, {"weight.absmax", "SCB"});
        },
    .read = nullptr,
};

}  // namespace lk
