#include "quant/formats.h"
#include "quant/formats/layouts.h"

namespace lk {
namespace {

constexpr int kGroup = 32;

// Codes [rows, cols / 2] bytes and scales [rows, cols / 32] of each expert, one after the other.
std::vector<StoredMatrix> matrices(const NamedTensors& tensors, const TensorView& codes,
                                   const TensorView& scales) {
  const int64_t rows = tensors.rows(), cols = tensors.cols();
  std::vector<StoredMatrix> matrices(tensors.matrices());
  for (size_t e = 0; e < matrices.size(); ++e) {
    StoredMatrix& matrix = matrices[e];
    const auto expert = static_cast<int64_t>(e);
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.codes = advance(codes.data, expert * rows * (cols / 2));
    matrix.row_bytes = cols / 2;
    matrix.scales = advance(scales.data, expert * rows * (cols / kGroup));
    matrix.scale_dtype = scales.dtype;
  }
  return matrices;
}

Status check_width(const NamedTensors& tensors) {
  if (tensors.cols() % kGroup == 0) return {};
  return invalid("{} is {} channels wide, but mxfp4 needs a multiple of {}", tensors.path(),
                 tensors.cols(), kGroup);
}

Result<std::vector<StoredMatrix>> read_blocks(NamedTensors& tensors) {
  LK_RETURN_IF_ERROR(check_width(tensors));
  const int64_t blocks = tensors.cols() / kGroup;
  LK_ASSIGN_OR_RETURN(TensorView codes, tensors.take("blocks", TensorRole::kCodes, {DType::kU8},
                                                     {tensors.rows(), blocks, kGroup / 2}));
  LK_ASSIGN_OR_RETURN(TensorView scales,
                      tensors.take("scales", TensorRole::kScales, {DType::kU8, DType::kF8E8M0},
                                   {tensors.rows(), blocks}));
  return matrices(tensors, codes, scales);
}

// The part that holds the codes, if they are bytes that stand beside scales that are bytes.
std::string_view packed_part(const NamedTensors& tensors) {
  const auto is_bytes = [&](std::string_view part, DType other) {
    const TensorView* tensor = tensors.find(part);
    return tensor && (tensor->dtype == DType::kU8 || tensor->dtype == other);
  };
  if (!is_bytes("weight_scale", DType::kF8E8M0)) return "";
  for (std::string_view part : {"weight_packed", "weight"}) {
    if (is_bytes(part, DType::kU8)) return part;
  }
  return "";
}

Result<std::vector<StoredMatrix>> read_packed(NamedTensors& tensors) {
  LK_RETURN_IF_ERROR(check_width(tensors));
  LK_ASSIGN_OR_RETURN(TensorView codes,
                      tensors.take(packed_part(tensors), TensorRole::kCodes, {DType::kU8},
                                   {tensors.rows(), tensors.cols() / 2}));
  LK_ASSIGN_OR_RETURN(TensorView scales, tensors.take("weight_scale", TensorRole::kScales,
                                                      {DType::kU8, DType::kF8E8M0},
                                                      {tensors.rows(), tensors.cols() / kGroup}));
  return matrices(tensors, codes, scales);
}

}  // namespace

const Format kFormatMxfp4{.name = "mxfp4",
                          .element = Element::kE2M1,
                          .scale = ScaleCodec::kE8M0,
                          .group_rows = 1,
                          .group_cols = kGroup};

// gpt-oss: `*_blocks` [rows, cols / 32, 16] and `*_scales` [rows, cols / 32].
const Layout kLayoutMxfp4Blocks{
    .name = "mxfp4 (blocks and scales)",
    .format = &kFormatMxfp4,
    .claims = [](const NamedTensors& tensors) -> std::string_view {
      return tensors.find("blocks") || tensors.find("scales") ? "blocks" : "";
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
