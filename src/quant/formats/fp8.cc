#include "quant/formats/fp8.h"

#include <algorithm>

#include "quant/formats.h"

namespace lk {
namespace {

Shape with_experts(const NamedTensors& tensors, Shape shape) {
  if (tensors.experts() > 0) shape.insert(shape.begin(), tensors.experts());
  return shape;
}

}  // namespace

std::string_view fp8_scale_part(const NamedTensors& tensors) {
  const std::string_view part =
      first_part(tensors, {"weight_scale_inv", "scale_inv", "weight_scale"});
  if (!part.empty()) return part;
  for (std::string_view other : {"weight_scale_inv", "scale_inv"}) {
    if (tensors.elsewhere(other)) return other;
  }
  return "weight_scale";
}

std::vector<Shape> fp8_channel_shapes(const NamedTensors& tensors) {
  return {with_experts(tensors, {tensors.rows(), 1}), with_experts(tensors, {tensors.rows()})};
}

Shape fp8_block_shape(const NamedTensors& tensors) {
  const int rows = kFormatFp8Block.group_rows, cols = kFormatFp8Block.group_cols;
  return with_experts(tensors,
                      {(tensors.rows() + rows - 1) / rows, (tensors.cols() + cols - 1) / cols});
}

Fp8Scales fp8_scales(const NamedTensors& tensors) {
  if (!is_dtype(tensors, "weight", DType::kF8E4M3)) return Fp8Scales::kNone;
  const TensorView* scales = tensors.find(fp8_scale_part(tensors));
  if (!scales) return Fp8Scales::kBlock;
  const Shape& shape = scales->shape;
  // A matrix of one block has the shape of a single number, and means the same.
  const std::vector<Shape> single = tensor_scale_shapes(tensors);
  if (std::find(single.begin(), single.end(), shape) != single.end()) {
    return shape == fp8_block_shape(tensors) ? Fp8Scales::kBlock : Fp8Scales::kTensor;
  }
  const std::vector<Shape> channel = fp8_channel_shapes(tensors);
  const bool by_row = std::find(channel.begin(), channel.end(), shape) != channel.end();
  return by_row ? Fp8Scales::kChannel : Fp8Scales::kBlock;
}

Result<TensorView> take_fp8_codes(NamedTensors& tensors) {
  return tensors.take("weight", TensorRole::kCodes, {DType::kF8E4M3},
                      {tensors.rows(), tensors.cols()});
}

}  // namespace lk
