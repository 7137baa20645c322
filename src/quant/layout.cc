#include "quant/layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace lk {

NamedTensors::NamedTensors(const Checkpoint& checkpoint, std::string path, NameForm form,
                           int experts, int64_t rows, int64_t cols,
                           std::vector<StoredTensor>& taken)
    : checkpoint_(checkpoint),
      path_(std::move(path)),
      form_(form),
      experts_(experts),
      rows_(rows),
      cols_(cols),
      taken_(taken) {}

std::string NamedTensors::name(std::string_view part) const {
  if (!is_parameter()) return fmt::format("{}.{}", path_, part);
  return part == "weight" ? path_ : fmt::format("{}_{}", path_, part);
}

const TensorView* NamedTensors::find(std::string_view part) const {
  return checkpoint_.find(name(part));
}

Result<TensorView> NamedTensors::take(std::string_view part, TensorRole role,
                                      std::initializer_list<DType> dtypes, Shape shape) {
  if (experts_ > 0) shape.insert(shape.begin(), experts_);
  return take_one_of(part, role, dtypes, {shape});
}

Result<TensorView> NamedTensors::take_one_of(std::string_view part, TensorRole role,
                                             std::initializer_list<DType> dtypes,
                                             const std::vector<Shape>& shapes) {
  std::vector<std::string> expected;
  for (const Shape& shape : shapes) expected.push_back(shape_string(shape));
  const std::string full = name(part);
  const auto entry = checkpoint_.tensors().find(full);
  if (entry == checkpoint_.tensors().end()) {
    return fail(ErrorKind::kInvalid, "tensor {} is missing, expected {}", full,
                fmt::join(expected, " or "));
  }
  const TensorView& view = entry->second;
  if (std::find(shapes.begin(), shapes.end(), view.shape) == shapes.end()) {
    return invalid("tensor {} has shape {}, expected {}", full, shape_string(view.shape),
                   fmt::join(expected, " or "));
  }
  if (std::find(dtypes.begin(), dtypes.end(), view.dtype) == dtypes.end()) {
    std::vector<std::string_view> names;
    for (DType dtype : dtypes) names.push_back(dtype_name(dtype));
    return invalid("tensor {} has dtype {}, expected {}", full, dtype_name(view.dtype),
                   fmt::join(names, " or "));
  }
  taken_.push_back({entry->first, view, role, checkpoint_.has_data()});
  return view;
}

bool NamedTensors::elsewhere(std::string_view part) const {
  const std::string ending = fmt::format("{}{}", is_parameter() ? '_' : '.', part);
  const auto& all = checkpoint_.tensors();
  return std::any_of(all.begin(), all.end(),
                     [&](const auto& entry) { return entry.first.ends_with(ending); });
}

std::string_view first_part(const NamedTensors& tensors,
                            std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts) {
    if (tensors.find(part)) return part;
  }
  return "";
}

bool is_dtype(const NamedTensors& tensors, std::string_view part, DType dtype) {
  const TensorView* tensor = tensors.find(part);
  return tensor && tensor->dtype == dtype;
}

std::vector<StoredMatrix> slice_experts(const NamedTensors& tensors, const Format& format,
                                        const TensorView& codes, const TensorView* scales) {
  const int64_t rows = tensors.rows(), cols = tensors.cols();
  const int64_t row_bytes = code_bytes(format.element, cols);
  std::vector<StoredMatrix> matrices(tensors.matrices());
  for (size_t e = 0; e < matrices.size(); ++e) {
    StoredMatrix& matrix = matrices[e];
    const auto expert = static_cast<int64_t>(e);
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.codes = advance(codes.data, expert * rows * row_bytes);
    matrix.row_bytes = row_bytes;
    if (!scales) continue;
    const auto size = static_cast<int64_t>(dtype_size(scales->dtype));
    matrix.scales = advance(scales->data, expert * matrix_scales(format, rows, cols) * size);
    matrix.scale_dtype = scales->dtype;
  }
  return matrices;
}

std::vector<Shape> tensor_scale_shapes(const NamedTensors& tensors) {
  std::vector<Shape> shapes = {{}, {1}, {1, 1}};
  if (const int64_t experts = tensors.experts(); experts > 0) {
    shapes.insert(shapes.end(), {{experts}, {experts, 1}, {experts, 1, 1}});
  }
  return shapes;
}

namespace {

Result<std::vector<float>> read_numbers(NamedTensors& tensors, std::string_view part,
                                        TensorRole role) {
  LK_ASSIGN_OR_RETURN(const TensorView view,
                      tensors.take_one_of(part, role, kFloatDTypes, tensor_scale_shapes(tensors)));
  std::vector<float> numbers(static_cast<size_t>(tensors.matrices()), 1.0f);
  if (!view.data) return numbers;
  for (size_t e = 0; e < numbers.size(); ++e) {
    const float number = load_f32(view, view.elements() == 1 ? 0 : static_cast<int64_t>(e));
    if (!std::isfinite(number) || number <= 0) {
      return invalid("tensor {} holds the scale {} at index {}, expected a positive number",
                     tensors.name(part), number, view.elements() == 1 ? 0 : e);
    }
    numbers[e] = number;
  }
  return numbers;
}

}  // namespace

Status read_tensor_scales(NamedTensors& tensors, std::string_view part,
                          std::vector<StoredMatrix>& matrices) {
  LK_ASSIGN_OR_RETURN(const std::vector<float> numbers,
                      read_numbers(tensors, part, TensorRole::kTensorScale));
  for (size_t e = 0; e < matrices.size(); ++e) matrices[e].tensor_scale = numbers[e];
  return {};
}

Status read_input_scales(NamedTensors& tensors, std::string_view multiply, std::string_view divide,
                         std::vector<StoredMatrix>& matrices) {
  const std::string_view part = first_part(tensors, {multiply});
  const std::string_view reciprocal = divide.empty() ? "" : first_part(tensors, {divide});
  if (part.empty() && reciprocal.empty()) return {};
  LK_ASSIGN_OR_RETURN(
      const std::vector<float> numbers,
      read_numbers(tensors, part.empty() ? reciprocal : part, TensorRole::kInputScale));
  for (size_t e = 0; e < matrices.size(); ++e) {
    matrices[e].input_scale = part.empty() ? 1.0f / numbers[e] : numbers[e];
  }
  return {};
}

Status check_width(const NamedTensors& tensors, const Format& format, int group) {
  if (tensors.cols() % group == 0) return {};
  return invalid("{} is {} channels wide, but {} needs a multiple of {}", tensors.path(),
                 tensors.cols(), format.name, group);
}

std::string_view claims_plain(const NamedTensors& tensors, DType dtype) {
  const TensorView* weight = tensors.find("weight");
  return weight && weight->dtype == dtype ? "weight" : "";
}

Result<std::vector<StoredMatrix>> read_plain(NamedTensors& tensors, DType dtype) {
  const int64_t rows = tensors.rows(), cols = tensors.cols();
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  const bool transposed = tensors.form() == NameForm::kParameterInOut;
  LK_ASSIGN_OR_RETURN(TensorView weight,
                      tensors.take("weight", TensorRole::kCodes, {dtype},
                                   transposed ? Shape{cols, rows} : Shape{rows, cols}));
  std::vector<StoredMatrix> matrices(tensors.matrices());
  for (size_t e = 0; e < matrices.size(); ++e) {
    StoredMatrix& matrix = matrices[e];
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.codes = advance(weight.data, static_cast<int64_t>(e) * rows * cols * size);
    matrix.row_bytes = cols * size;
    matrix.transposed = transposed;
  }
  return matrices;
}

}  // namespace lk
