#include "quant/layout.h"

#include <fmt/ranges.h>

#include <algorithm>

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
  const std::string full = name(part);
  const auto entry = checkpoint_.tensors().find(full);
  if (entry == checkpoint_.tensors().end()) {
    return fail(ErrorKind::kInvalid, "tensor {} is missing, expected {}", full,
                shape_string(shape));
  }
  const TensorView& view = entry->second;
  if (view.shape != shape) {
    return invalid("tensor {} has shape {}, expected {}", full, shape_string(view.shape),
                   shape_string(shape));
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
