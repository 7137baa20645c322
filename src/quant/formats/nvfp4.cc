#include "quant/formats.h"
#include "quant/formats/layouts.h"

namespace lk {
namespace {

constexpr int kGroup = 16;

// Codes in `codes_part`, block scales beside them, one number for the whole tensor.
Result<std::vector<StoredMatrix>> read(NamedTensors& tensors, const Format& format,
                                       std::string_view codes_part, std::string_view tensor_scale) {
  LK_RETURN_IF_ERROR(check_width(tensors, format, kGroup));
  LK_ASSIGN_OR_RETURN(TensorView codes, tensors.take(codes_part, TensorRole::kCodes, {DType::kU8},
                                                     {tensors.rows(), tensors.cols() / 2}));
  LK_ASSIGN_OR_RETURN(TensorView scales,
                      tensors.take("weight_scale", TensorRole::kScales, {DType::kF8E4M3},
                                   {tensors.rows(), tensors.cols() / kGroup}));
  std::vector<StoredMatrix> matrices = slice_experts(tensors, format, codes, &scales);
  LK_RETURN_IF_ERROR(read_tensor_scales(tensors, tensor_scale, matrices));
  LK_RETURN_IF_ERROR(read_input_scales(tensors, "input_scale", "input_global_scale", matrices));
  return matrices;
}

std::string_view codes_beside_scales(const NamedTensors& tensors, std::string_view part) {
  return is_dtype(tensors, part, DType::kU8) && is_dtype(tensors, "weight_scale", DType::kF8E4M3)
             ? part
             : "";
}

}  // namespace

const Format kFormatNvfp4{.name = "nvfp4",
                          .element = Element::kE2M1,
                          .scale = ScaleCodec::kE4M3,
                          .group_rows = 1,
                          .group_cols = kGroup,
                          .tensor_scale = TensorScale::kMultiply,
                          .recipe_names = {"nvfp4", "w4a16_nvfp4", "w4a8_nvfp4_fp8"}};

// The same with the reciprocal of the tensor scale in the file. A format of its own, since
// code x (scale / s) and code x (scale x (1 / s)) differ in the last bit.
const Format kFormatNvfp4Divide{.name = "nvfp4-divide",
                                .element = Element::kE2M1,
                                .scale = ScaleCodec::kE4M3,
                                .group_rows = 1,
                                .group_cols = kGroup,
                                .tensor_scale = TensorScale::kDivide,
                                .packings = {"nvfp4-pack-quantized"}};

// ModelOpt: `weight` [rows, cols / 2] bytes, `weight_scale` [rows, cols / 16] and `weight_scale_2`.
const Layout kLayoutNvfp4{
    .name = "nvfp4 (ModelOpt)",
    .format = &kFormatNvfp4,
    .claims = [](const NamedTensors& tensors) -> std::string_view {
      return tensors.find("weight_scale_2") ? "weight_scale_2"
                                            : codes_beside_scales(tensors, "weight");
    },
    .read =
        [](NamedTensors& tensors) {
          return read(tensors, kFormatNvfp4, "weight", "weight_scale_2");
        },
};

// compressed-tensors: `weight_packed`, `weight_scale` and `weight_global_scale`, which divides.
const Layout kLayoutNvfp4Divide{
    .name = "nvfp4 (compressed-tensors)",
    .format = &kFormatNvfp4Divide,
    .claims = [](const NamedTensors& tensors) -> std::string_view {
      return tensors.find("weight_global_scale") ? "weight_global_scale"
                                                 : codes_beside_scales(tensors, "weight_packed");
    },
    .read =
        [](NamedTensors& tensors) {
          return read(tensors, kFormatNvfp4Divide, "weight_packed", "weight_global_scale");
        },
};

}  // namespace lk
