#include "quant/formats.h"
#include "quant/formats/fp8.h"
#include "quant/formats/layouts.h"

namespace lk {
namespace {

Result<std::vector<StoredMatrix>> read(NamedTensors& tensors) {
  LK_ASSIGN_OR_RETURN(TensorView codes, take_fp8_codes(tensors));
  std::vector<StoredMatrix> matrices = slice_experts(tensors, kFormatFp8Tensor, codes, nullptr);
  LK_RETURN_IF_ERROR(read_tensor_scales(tensors, fp8_scale_part(tensors), matrices));
  LK_RETURN_IF_ERROR(read_input_scales(tensors, "input_scale", "", matrices));
  return matrices;
}

}  // namespace

const Format kFormatFp8Tensor{.name = "fp8-tensor",
                              .element = Element::kE4M3,
                              .group_rows = 0,
                              .group_cols = 0,
                              .tensor_scale = TensorScale::kMultiply,
                              .recipe_names = {"fp8"},
                              .packings = {"float-quantized", "naive-quantized"}};

// ModelOpt, compressed-tensors and Transformers without blocks: `weight` [rows, cols], one
// `weight_scale` (`weight_scale_inv`), and `input_scale` where activations are quantized
// statically.
const Layout kLayoutFp8Tensor{
    .name = "fp8-tensor",
    .format = &kFormatFp8Tensor,
    .claims = [](const NamedTensors& tensors) -> std::string_view {
      return fp8_scales(tensors) == Fp8Scales::kTensor ? "weight" : "";
    },
    .read = read,
};

}  // namespace lk
