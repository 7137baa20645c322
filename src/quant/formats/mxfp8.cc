#include "quant/formats.h"
#include "quant/formats/layouts.h"

namespace lk {
namespace {

constexpr int kGroup = 32;

std::string_view claims(const NamedTensors& tensors) {
  const bool bytes = is_dtype(tensors, "weight_scale", DType::kU8) ||
                     is_dtype(tensors, "weight_scale", DType::kF8E8M0);
  return bytes && is_dtype(tensors, "weight", DType::kF8E4M3) ? "weight" : "";
}

Result<std::vector<StoredMatrix>> read(NamedTensors& tensors) {
  LK_RETURN_IF_ERROR(check_width(tensors, kFormatMxfp8, kGroup));
  LK_ASSIGN_OR_RETURN(TensorView codes, tensors.take("weight", TensorRole::kCodes, {DType::kF8E4M3},
                                                     {tensors.rows(), tensors.cols()}));
  LK_ASSIGN_OR_RETURN(TensorView scales, tensors.take("weight_scale", TensorRole::kScales,
                                                      {DType::kU8, DType::kF8E8M0},
                                                      {tensors.rows(), tensors.cols() / kGroup}));
  return slice_experts(tensors, kFormatMxfp8, codes, &scales);
}

}  // namespace

const Format kFormatMxfp8{.name = "mxfp8",
                          .element = Element::kE4M3,
                          .scale = ScaleCodec::kE8M0,
                          .group_rows = 1,
                          .group_cols = kGroup,
                          .recipe_names = {"mxfp8"},
                          .packings = {"mxfp8-quantized"}};

// ModelOpt and compressed-tensors: `weight` [rows, cols] and `weight_scale` [rows, cols / 32]
// bytes.
const Layout kLayoutMxfp8{.name = "mxfp8", .format = &kFormatMxfp8, .claims = claims, .read = read};

}  // namespace lk
