#include "quant/formats.h"
#include "quant/formats/fp8.h"
#include "quant/formats/layouts.h"

namespace lk {
namespace {

Result<std::vector<StoredMatrix>> read(NamedTensors& tensors) {
  LK_ASSIGN_OR_RETURN(TensorView codes, take_fp8_codes(tensors));
  LK_ASSIGN_OR_RETURN(TensorView scales,
                      tensors.take_one_of(fp8_scale_part(tensors), TensorRole::kScales,
                                          kFloatDTypes, fp8_channel_shapes(tensors)));
  std::vector<StoredMatrix> matrices = slice_experts(tensors, kFormatFp8Channel, codes, &scales);
  LK_RETURN_IF_ERROR(read_input_scales(tensors, "input_scale", "", matrices));
  return matrices;
}

}  // namespace

const Format kFormatFp8Channel{.name = "fp8-channel",
                               .element = Element::kE4M3,
                               .scale = ScaleCodec::kFloat,
                               .group_rows = 1,
                               .group_cols = 0,
                               .recipe_names = {"fp8_per_channel_per_token", "fbgemm_fp8"},
                               .packings = {"float-quantized", "naive-quantized"}};

// `weight` [rows, cols] and `weight_scale`: [rows, 1] of compressed-tensors (FP8_DYNAMIC), [rows]
// of ModelOpt.
const Layout kLayoutFp8Channel{
    .name = "fp8-channel",
    .format = &kFormatFp8Channel,
    .claims = [](const NamedTensors& tensors) -> std::string_view {
      return fp8_scales(tensors) == Fp8Scales::kChannel ? "weight" : "";
    },
    .read = read,
};

}  // namespace lk
