#include "model/quantize_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/numeric.h"
#include "quant/encode/elements.h"
#include "quant/stored_linear.h"

namespace lk {
namespace {

bool is_attention_input(Stage stage) {
  return stage == Stage::kQuery || stage == Stage::kKey || stage == Stage::kValue;
}

// Rows that are encoded at once.
int64_t band_rows(const Format& format) { return std::max(format.group_rows, 1); }

void decode_whole_row(const StoredLinear& linear, int expert, int64_t row, float* out) {
  const StoredRow stored = stored_row(linear, expert, row);
  decode_row(*linear.format, *stored.matrix, stored.row, out);
}

}  // namespace

LinearWriter::LinearWriter(const Target& target, const QuantizePlan& plan,
                           const SafetensorsWriter& out, ThreadPool& pool, bool measure,
                           std::function<bool(uint64_t)> wrote)
    : target_(target),
      plan_(plan),
      out_(out),
      pool_(pool),
      measure_(measure),
      wrote_(std::move(wrote)) {}

Result<bool> LinearWriter::write(const PlannedLinear& linear) {
  sums_ = {};
  const StoredLinear& source = *linear.source;
  for (const Piece& piece : linear.pieces) {
    for (int i = 0; i < piece.experts; ++i) {
      const int expert = piece.first_expert + i;
      const DecodeRow decode = [&](int64_t row, float* out) {
        decode_whole_row(source, expert, whole_row(*source.spec, piece.part, row), out);
      };
      if (linear.fate == Fate::kDecoded) {
        LK_ASSIGN_OR_RETURN(const bool go_on, write_plain(linear, piece, expert));
        if (!go_on) return false;
        continue;
      }
      StoredMatrix matrix;
      matrix.rows = piece.rows;
      matrix.cols = piece.cols;
      matrix.row_bytes = code_bytes(target_.stored->element, piece.cols);
      matrix.scale_dtype = target_.scales_dtype;
      codes_.resize(static_cast<size_t>(piece.rows * matrix.row_bytes));
      scales_.resize(static_cast<size_t>(matrix_scales(*target_.stored, piece.rows, piece.cols)) *
                     dtype_size(target_.scales_dtype));
      matrix.codes = codes_.data();
      matrix.scales = scales_.empty() ? nullptr : scales_.data();
      if (linear.fate == Fate::kTranscribed) {
        transcribe(linear, piece, expert, matrix);
      } else {
        if (target_.encoder.tensor_scale) matrix.tensor_scale = tensor_scale(linear, piece, expert);
        encode(piece, decode, matrix);
        if (measure_) add_error(piece, decode, matrix);
      }
      LK_ASSIGN_OR_RETURN(const bool go_on, write_matrix(piece, i, matrix));
      if (!go_on) return false;
    }
    LK_ASSIGN_OR_RETURN(const bool go_on, write_bias(linear, piece));
    if (!go_on) return false;
  }
  return true;
}

double LinearWriter::error() const {
  return sums_.magnitude > 0 ? std::sqrt(sums_.difference / sums_.magnitude) : 0;
}

float LinearWriter::tensor_scale(const PlannedLinear& linear, const Piece& piece, int expert) {
  const LinearSpec& spec = *linear.source->spec;
  float largest = 0;
  if (!target_.shared_tensor_scale) {
    largest = largest_magnitude_of(linear, piece.part, expert);
  } else if (!is_attention_input(spec.stage)) {
    largest = largest_magnitude_of(linear, RowPart::kAll, expert);
  } else if (const auto known = attention_largest_.find(spec.layer);
             known != attention_largest_.end()) {
    largest = known->second;
  } else {
    for (const PlannedLinear& other : plan_.linears) {
      const LinearSpec& beside = *other.source->spec;
      if (beside.layer == spec.layer && is_attention_input(beside.stage) &&
          (other.fate == Fate::kEncoded || other.fate == Fate::kTranscribed)) {
        largest = std::max(largest, largest_magnitude_of(other, RowPart::kAll, 0));
      }
    }
    attention_largest_[spec.layer] = largest;
  }
  return target_.encoder.tensor_scale(largest);
}

float LinearWriter::largest_magnitude_of(const PlannedLinear& linear, RowPart part, int expert) {
  const LinearSpec& spec = *linear.source->spec;
  const int64_t rows = part == RowPart::kAll ? spec.out : spec.out / 2;
  std::vector<float> largest(static_cast<size_t>(pool_.threads()), 0.0f);
  std::vector<std::vector<float>> buffers(largest.size());
  pool_.run(rows, 16, [&](int64_t row, int thread) {
    std::vector<float>& values = buffers[static_cast<size_t>(thread)];
    values.resize(static_cast<size_t>(spec.in));
    decode_whole_row(*linear.source, expert, whole_row(spec, part, row), values.data());
    float& most = largest[static_cast<size_t>(thread)];
    most = std::max(most, largest_magnitude(values.data(), spec.in));
  });
  return *std::max_element(largest.begin(), largest.end());
}

void LinearWriter::encode(const Piece& piece, const DecodeRow& decode, StoredMatrix& matrix) {
  const Format& format = *target_.stored;
  const int64_t band = band_rows(format), bands = (piece.rows + band - 1) / band;
  const int64_t scale_bytes =
      row_scales(format, piece.cols) * static_cast<int64_t>(dtype_size(target_.scales_dtype));
  // Where all rows share what scales there are, bands have none of their own.
  const int64_t band_scales = format.group_rows == 0 ? 0 : scale_bytes;
  std::vector<std::vector<float>> buffers(static_cast<size_t>(pool_.threads()));
  pool_.run(bands, band > 1 ? 1 : 16, [&](int64_t b, int thread) {
    std::vector<float>& values = buffers[static_cast<size_t>(thread)];
    const int64_t first = b * band, rows = std::min(band, piece.rows - first);
    values.resize(static_cast<size_t>(rows * piece.cols));
    for (int64_t r = 0; r < rows; ++r) decode(first + r, values.data() + r * piece.cols);
    target_.encoder.encode(values.data(), rows, piece.cols, matrix.tensor_scale,
                           codes_.data() + first * matrix.row_bytes,
                           scales_.data() + b * band_scales);
  });
}

void LinearWriter::transcribe(const PlannedLinear& linear, const Piece& piece, int expert,
                              StoredMatrix& matrix) {
  const Format& format = *target_.stored;
  const int64_t band = band_rows(format);
  const int64_t row_groups = format.group_rows == 0 ? 0 : row_scales(format, piece.cols);
  const auto size = static_cast<int64_t>(dtype_size(target_.scales_dtype));
  for (int64_t row = 0; row < piece.rows; ++row) {
    const StoredRow from =
        stored_row(*linear.source, expert, whole_row(*linear.source->spec, piece.part, row));
    std::memcpy(codes_.data() + row * matrix.row_bytes,
                from.matrix->codes + from.row * from.matrix->row_bytes,
                static_cast<size_t>(matrix.row_bytes));
    matrix.tensor_scale = from.matrix->tensor_scale;
    if (row % band != 0 || row_groups == 0) continue;
    std::byte* to = scales_.data() + row / band * row_groups * size;
    const int64_t first = from.row / band * row_groups;
    if (format.scale != ScaleCodec::kFloat) {
      std::memcpy(to, from.matrix->scales + first, static_cast<size_t>(row_groups));
      continue;
    }
    for (int64_t g = 0; g < row_groups; ++g) {
      const float scale = decode_scale(format, *from.matrix, first + g);
      std::memcpy(to + g * size, &scale, sizeof(scale));
    }
  }
}

Result<bool> LinearWriter::write_plain(const PlannedLinear& linear, const Piece& piece,
                                       int expert) {
  const LinearSpec& spec = *linear.source->spec;
  const int64_t rows = piece.rows, cols = piece.cols;
  codes_.resize(static_cast<size_t>(rows * cols) * sizeof(uint16_t));
  auto* out = reinterpret_cast<uint16_t*>(codes_.data());
  std::vector<std::vector<float>> buffers(static_cast<size_t>(pool_.threads()));
  std::vector<Sums> sums(static_cast<size_t>(measure_ ? rows : 0));
  pool_.run(rows, 32, [&](int64_t row, int thread) {
    std::vector<float>& values = buffers[static_cast<size_t>(thread)];
    values.resize(static_cast<size_t>(cols));
    decode_whole_row(*linear.source, expert, whole_row(spec, piece.part, row), values.data());
    for (int64_t c = 0; c < cols; ++c) {
      const uint16_t code = f32_to_bf16(values[static_cast<size_t>(c)]);
      out[piece.transposed ? c * rows + row : row * cols + c] = code;
      if (!measure_) continue;
      const double old = values[static_cast<size_t>(c)], off = bf16_to_f32(code) - old;
      sums[static_cast<size_t>(row)].difference += off * off;
      sums[static_cast<size_t>(row)].magnitude += old * old;
    }
  });
  for (const Sums& sum : sums) {
    sums_.difference += sum.difference;
    sums_.magnitude += sum.magnitude;
  }
  const auto index = static_cast<uint64_t>(expert - piece.first_expert);
  return put(piece.codes, index * codes_.size(), codes_);
}

Result<bool> LinearWriter::write_matrix(const Piece& piece, int index, const StoredMatrix& matrix) {
  const auto at = static_cast<uint64_t>(index);
  LK_ASSIGN_OR_RETURN(bool go_on, put(piece.codes, at * codes_.size(), codes_));
  if (go_on && piece.scales != kNoTensor) {
    LK_ASSIGN_OR_RETURN(go_on, put(piece.scales, at * scales_.size(), scales_));
  }
  if (go_on && piece.tensor_scale != kNoTensor) {
    const std::span<const float> scale(&matrix.tensor_scale, 1);
    LK_ASSIGN_OR_RETURN(go_on, put(piece.tensor_scale, at * sizeof(float), std::as_bytes(scale)));
  }
  return go_on;
}

Result<bool> LinearWriter::write_bias(const PlannedLinear& linear, const Piece& piece) {
  if (piece.bias == kNoTensor) return true;
  const TensorView& from = linear.source->bias;
  const DType dtype = plan_.tensors[piece.bias].dtype;
  const size_t size = dtype_size(dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(piece.experts * piece.rows) * size);
  std::byte* to = bytes.data();
  for (int i = 0; i < piece.experts; ++i) {
    for (int64_t row = 0; row < piece.rows; ++row, to += size) {
      const LinearSpec& spec = *linear.source->spec;
      const int64_t at = (piece.first_expert + i) * spec.out + whole_row(spec, piece.part, row);
      if (dtype == from.dtype) {
        std::memcpy(to, from.data + static_cast<size_t>(at) * size, size);
      } else {
        const uint16_t value = f32_to_bf16(load_f32(from, at));
        std::memcpy(to, &value, size);
      }
    }
  }
  return put(piece.bias, 0, bytes);
}

Result<bool> LinearWriter::put(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  LK_RETURN_IF_ERROR(out_.write(tensor, offset, bytes));
  return wrote_(bytes.size());
}

void LinearWriter::add_error(const Piece& piece, const DecodeRow& decode,
                             const StoredMatrix& matrix) {
  std::vector<Sums> sums(static_cast<size_t>(piece.rows));
  std::vector<std::vector<float>> buffers(static_cast<size_t>(pool_.threads()));
  pool_.run(piece.rows, 16, [&](int64_t row, int thread) {
    std::vector<float>& values = buffers[static_cast<size_t>(thread)];
    values.resize(static_cast<size_t>(2 * piece.cols));
    float* old = values.data();
    float* now = old + piece.cols;
    decode(row, old);
    decode_row(*target_.stored, matrix, row, now);
    Sums& sum = sums[static_cast<size_t>(row)];
    for (int64_t c = 0; c < piece.cols; ++c) {
      const double off = static_cast<double>(now[c]) - old[c];
      sum.difference += off * off;
      sum.magnitude += static_cast<double>(old[c]) * old[c];
    }
  });
  // One after the other, so that the sum does not depend on the threads.
  for (const Sums& sum : sums) {
    sums_.difference += sum.difference;
    sums_.magnitude += sum.magnitude;
  }
}

}  // namespace lk
