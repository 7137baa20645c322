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

  const std::string& path() const { return path_; }
  NameForm form() const { return form_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
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

// `data` + `offset`; null stays null (a checkpoint without data).
inline const std::byte* advance(const std::byte* data, int64_t offset) {
  return data ? data + offset : nullptr;
}

}  // namespace lk
