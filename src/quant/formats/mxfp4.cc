#include "quant/formats.h"
#include "quant/formats/layouts.h"

namespace lk {
namespace {

constexpr int kGroup = 32;

Result<std::vector<StoredMatrix>> read_blocks(NamedTensors& tensors) {
  LK_RETURN_IF_ERROR(check_width(tensors, kFormatMxfp4, kGroup));
  const int64_t blocks = tensors.cols() / kGroup;
  LK_ASSIGN_OR_RETURN(TensorView codes, tensors.take("blocks", TensorRole::kCodes, {DType::kU8},
                                                     {tensors.rows(), blocks, kGroup / 2}));
  LK_ASSIGN_OR_RETURN(TensorView scales,
                      tensors.take("scales", TensorRole::kScales, {DType::kU8, DType::kF8E8M0},
                                   {tensors.rows(), blocks}));
  return slice_experts(tensors, kFormatMxfp4, codes, &scales);
}

// The part that holds the codes, if they are bytes that stand beside scales that are bytes, or
// beside none: then the scales are what is missing.
std::string_view packed_part(const NamedTensors& tensors) {
  const TensorView* scales = tensors.find("weight_scale");
  if (scales && scales->dtype != DType::kU8 && scales->dtype != DType::kF8E8M0) return "";
  for (std::string_view part : {"weight_packed", "weight"}) {
    if (!is_dtype(tensors, part, DType::kU8)) continue;
    if (scales || tensors.find(part)->shape.back() == tensors.cols() / 2) return part;
  }
  return "";
}

Result<std::vector<StoredMatrix>> read_packed(NamedTensors& tensors) {
  LK_RETURN_IF_ERROR(check_width(tensors, kFormatMxfp4, kGroup));
  std::string_view part = packed_part(tensors);
  if (part.empty()) part = tensors.elsewhere("weight_packed") ? "weight_packed" : "weight";
  LK_ASSIGN_OR_RETURN(TensorView codes, tensors.take(part, TensorRole::kCodes, {DType::kU8},
                                                     {tensors.rows(), tensors.cols() / 2}));
  LK_ASSIGN_OR_RETURN(TensorView scales, tensors.take("weight_scale", TensorRole::kScales,
                                                      {DType::kU8, DType::kF8E8M0},
                                                      {tensors.rows(), tensors.cols() / kGroup}));
  return slice_experts(tensors, kFormatMxfp4, codes, &scales);
}

}  // namespace

const Format kFormatMxfp4{.name = "mxfp4",
                          .element = Element::kE2M1,
                          .scale = ScaleCodec::kE8M0,
                          .group_rows = 1,
                          .group_cols = kGroup,
                          .recipe_names = {"mxfp4", "w4a8_mxfp4_fp8"},
                          .packings = {"mxfp4-pack-quantized"}};

// gpt-oss: `*_blocks` [rows, cols / 32, 16] and `*_scales` [rows, cols / 32].
const Layout kLayoutMxfp4Blocks{
    .name = "mxfp4 (blocks and scales)",
    .format = &kFormatMxfp4,
    .claims = [](const NamedTensors& tensors) -> std::string_view {
      return first_part(tensors, {"blocks", "scales"}).empty() ? "" : "blocks";
    },
    .read = read_blocks,
};

// compressed-tensors: `weight_packed` [rows, cols / 2] and `weight_scale` [rows, cols / 32], both
// bytes; ModelOpt: the same with `weight`.
const Layout kLayoutMxfp4Packed{
    .name = "mxfp4 (packed)",
    .format = &kFormatMxfp4,
    .claims = packed_part,
    .read = read_packed,
};

}  // namespace lk
