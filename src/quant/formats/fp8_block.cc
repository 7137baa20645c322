#include "quant/formats.h"
#include "quant/formats/fp8.h"
#include "quant/formats/layouts.h"

namespace lk {
namespace {

constexpr int kBlock = 128;

Result<std::vector<StoredMatrix>> read(NamedTensors& tensors) {
  LK_ASSIGN_OR_RETURN(TensorView codes, take_fp8_codes(tensors));
  const std::string_view part = fp8_scale_part(tensors);
  std::vector<Shape> shapes = {fp8_block_shape(tensors)};
  // Under the name that all forms share, a shape that is none of theirs is told all of them.
  if (part == "weight_scale") {
    const std::vector<Shape> single = tensor_scale_shapes(tensors);
    shapes.insert(shapes.begin(), fp8_channel_shapes(tensors).front());
    shapes.insert(shapes.begin(), single.begin(), single.end());
  }
  LK_ASSIGN_OR_RETURN(TensorView scales,
                      tensors.take_one_of(part, TensorRole::kScales, kFloatDTypes, shapes));
  std::vector<StoredMatrix> matrices = slice_experts(tensors, kFormatFp8Block, codes, &scales);
  LK_RETURN_IF_ERROR(read_input_scales(tensors, "input_scale", "", matrices));
  return matrices;
}

}  // namespace

const Format kFormatFp8Block{.name = "fp8-block",
                             .element = Element::kE4M3,
                             .scale = ScaleCodec::kFloat,
                             .group_rows = kBlock,
                             .group_cols = kBlock,
                             .recipe_names = {"fp8_pb_wo", "fp8_pb_real", "fp8_block"},
                             .packings = {"float-quantized", "naive-quantized"}};

// Transformers (Qwen, DeepSeek): `weight` [rows, cols] and `weight_scale_inv` [ceil(rows / 128),
// ceil(cols / 128)], which multiplies; of fused experts `<path>_scale_inv`. compressed-tensors
// (FP8_BLOCK): the same as `weight_scale`.
const Layout kLayoutFp8Block{
    .name = "fp8-block",
    .format = &kFormatFp8Block,
    .claims = [](const NamedTensors& tensors) -> std::string_view {
      const std::string_view inverse = first_part(tensors, {"weight_scale_inv", "scale_inv"});
      if (!inverse.empty()) return inverse;
      return fp8_scales(tensors) == Fp8Scales::kBlock ? "weight" : "";
    },
    .read = read,
};

}  // namespace lk
