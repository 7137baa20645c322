// Layouts: how a published form spells a format's tensors. Each formats/<name>.cc holds its own;
// the ordered table is layouts.cc. Used by detect.cc alone. Immutable rows of a static table.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "quant/stored_linear.h"

namespace lk {

// The tensors behind one name of a linear: `weight` and the like below a module, suffixes of a bare
// parameter.
class NamedTensors {
 public:
  // `path` is the full name of the module or parameter; `experts` is 0 when one matrix stands
  // behind it.
  NamedTensors(const Checkpoint& checkpoint, std::string path, NameForm form, int experts,
               int64_t rows, int64_t cols, std::vector<StoredTensor>& taken);

  // Full name of a part: "weight", "weight_scale", "blocks", "bias".
  std::string name(std::string_view part) const;
  // Null if the checkpoint has no such tensor.
  const TensorView* find(std::string_view part) const;
  // The tensor, checked and counted as used. `shape` is of one expert; the experts' extent is put
  // before it.
  Result<TensorView> take(std::string_view part, TensorRole role,
                          std::initializer_list<DType> dtypes, Shape shape);
  // The same where several shapes are right, given whole.
  Result<TensorView> take_one_of(std::string_view part, TensorRole role,
                                 std::initializer_list<DType> dtypes,
                                 const std::vector<Shape>& shapes);

  // Whether any module of the checkpoint has such a part: which of several names a missing tensor
  // would have.
  bool elsewhere(std::string_view part) const;

  const std::string& path() const { return path_; }
  NameForm form() const { return form_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int experts() const { return experts_; }  // 0 when one matrix stands behind the name
  int matrices() const { return experts_ > 0 ? experts_ : 1; }
  bool is_parameter() const {
    return form_ == NameForm::kParameterOutIn || form_ == NameForm::kParameterInOut;
  }

 private:
  const Checkpoint& checkpoint_;
  std::string path_;
  NameForm form_;
  int experts_;
  int64_t rows_, cols_;
  std::vector<StoredTensor>& taken_;
};

struct Layout {
  std::string_view name;  // as an error's sentence calls it
  const Format* format;   // null: recognised only to be refused by name
  // The part that gives the layout away if this layout is the one behind the name, else empty.
  std::string_view (*claims)(const NamedTensors& tensors);
  // One matrix for each expert. Null when `format` is.
  Result<std::vector<StoredMatrix>> (*read)(NamedTensors& tensors);
};

// In order of detection (the first that claims a name has it).
std::span<const Layout* const> all_layouts();

// Unquantized weights of `dtype`: claim and read of formats f32, f16 and bf16.
std::string_view claims_plain(const NamedTensors& tensors, DType dtype);
Result<std::vector<StoredMatrix>> read_plain(NamedTensors& tensors, DType dtype);

// Types in which scales that are no codes are stored.
inline constexpr std::initializer_list<DType> kFloatDTypes = {DType::kF32, DType::kBF16,
                                                              DType::kF16};

// The first of `parts` that the checkpoint holds, else empty.
std::string_view first_part(const NamedTensors& tensors,
                            std::initializer_list<std::string_view> parts);
bool is_dtype(const NamedTensors& tensors, std::string_view part, DType dtype);

// One matrix for each expert: codes and scales of `format` that lie expert after expert. `scales`
// null: none.
std::vector<StoredMatrix> slice_experts(const NamedTensors& tensors, const Format& format,
                                        const TensorView& codes, const TensorView* scales);

// Shapes in which one number for each expert, or one for all, is stored.
std::vector<Shape> tensor_scale_shapes(const NamedTensors& tensors);
// Reads such numbers to the matrices' tensor_scale. Errors: not positive and finite. Without data
// they stay 1.
Status read_tensor_scales(NamedTensors& tensors, std::string_view part,
                          std::vector<StoredMatrix>& matrices);
// The same for scales of static activations, which a file may leave out: `multiply` or its
// reciprocal `divide` (empty: the format has no such name).
Status read_input_scales(NamedTensors& tensors, std::string_view multiply, std::string_view divide,
                         std::vector<StoredMatrix>& matrices);

// Errors unless the linear is a multiple of `group` channels wide.
Status check_width(const NamedTensors& tensors, const Format& format, int group);

// `data` + `offset`; null stays null (a checkpoint without data).
inline const std::byte* advance(const std::byte* data, int64_t offset) {
  return data ? data + offset : nullptr;
}

}  // namespace lk
