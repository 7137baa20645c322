// A linear as it lies in a checkpoint: views of its codes, scales and bias, expert by expert, in
// the format that was detected. Views (but for a gathered bias): the checkpoint must outlive it.
// Immutable after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/tensor_view.h"
#include "checkpoint/linear_table.h"
#include "quant/format.h"

namespace lk {

// Rows of one matrix that lie together in the file.
struct StoredMatrix {
  RowPart part = RowPart::kAll;
  int64_t rows = 0, cols = 0;        // rows of this part, contraction length
  const std::byte* codes = nullptr;  // row r starts at r * row_bytes, unless `transposed`
  int64_t row_bytes = 0;
  bool transposed = false;  // element (r, c) is codes[c * rows + r]; unquantized formats only
  const std::byte* scales =
      nullptr;  // [ceil(rows/group_rows), ceil(cols/group_cols)] of scale_dtype; null if none
  DType scale_dtype = DType::kU8;
  float tensor_scale = 1.0f;  // multiplies or divides, as the format says
  float input_scale = 0;  // of statically quantized activations, multiplies; 0: the file has none
};

enum class TensorRole : uint8_t { kCodes, kScales, kTensorScale, kInputScale, kBias };

// A tensor of the file that a linear is made of.
struct StoredTensor {
  std::string_view name;  // in the checkpoint
  TensorView view;
  TensorRole role = TensorRole::kCodes;
  bool mapped = false;  // its pages may be given back after use
};

struct StoredLinear {
  const LinearSpec* spec = nullptr;
  const Format* format = nullptr;
  // [max(experts, 1)][parts of one expert]: one kAll part, or kGate and kUp.
  std::vector<std::vector<StoredMatrix>> experts;
  TensorView bias;                    // [out], [experts, out], or an empty shape when there is none
  std::vector<StoredTensor> tensors;  // all of the above as they stand in the file
  // Holds `bias` where the file keeps it in pieces (one tensor for each expert, or gate and up
  // apart): float32.
  std::shared_ptr<const std::vector<float>> gathered_bias;

  int expert_count() const { return static_cast<int>(experts.size()); }
};

// Logical row `row` of expert `expert` in the spec's row order (a fused linear's row, wherever the
// file keeps it).
struct StoredRow {
  const StoredMatrix* matrix;
  int64_t row;  // within the matrix
};
StoredRow stored_row(const StoredLinear& linear, int expert, int64_t row);

// Weights of one row as float32, `out` holds `cols` values: code x (scale x tensor scale, or scale
// / tensor scale). The specification of every format.
void decode_row(const Format& format, const StoredMatrix& matrix, int64_t row, float* out);
// Scale `i` of a matrix, without the tensor scale.
float decode_scale(const Format& format, const StoredMatrix& matrix, int64_t i);
// What a matrix's scales are multiplied by: its tensor scale or the reciprocal.
float tensor_factor(const Format& format, const StoredMatrix& matrix);
// Scales of one row, and of one matrix: ceil(cols / group_cols), ceil(rows / group_rows) of those;
// 0 without.
int64_t row_scales(const Format& format, int64_t cols);
int64_t matrix_scales(const Format& format, int64_t rows, int64_t cols);
// The scale of an expert's statically quantized activations: the largest of its matrices' (gate and
// up read the same ones); 0: the file has none.
float input_scale(const StoredLinear& linear, int expert);
// Bias of one expert's row as float32; 0 if there is none.
float stored_bias(const StoredLinear& linear, int expert, int64_t row);

}  // namespace lk
