#include "kernels/cpu/packed.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/mmap_file.h"
#include "base/numeric.h"

namespace lk::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Copies one row's codes to `words` 32-bit words; what the row does not fill stays 0.
void copy_codes(const Format& format, const StoredMatrix& m, int64_t row, uint32_t* words) {
  if (!m.transposed) {
    std::memcpy(words, m.codes + row * m.row_bytes, code_bytes(format.element, m.cols));
    return;
  }
  const int64_t size = element_bits(format.element) / 8;
  for (int64_t c = 0; c < m.cols; ++c) {
    std::memcpy(reinterpret_cast<std::byte*>(words) + c * size, m.codes + (c * m.rows + row) * size,
                size);
  }
}

// The factor of one row: its tensor's scale, its own, and what the codecs leave out.
float row_factor(const Format& format, const StoredMatrix& m, int64_t row) {
  float factor = tensor_factor(format, m);
  if (format.scale == ScaleCodec::kFloat && format.group_cols == 0) {
    factor *= decode_scale(format, m, format.group_rows == 0 ? 0 : row / format.group_rows);
  }
  if (format.element == Element::kE4M3) factor *= kE4m3Factor;
  if (format.scale == ScaleCodec::kE4M3) factor *= kE4m3Factor;
  return factor;
}

bool has_row_factor(const Format& format) {
  return format.tensor_scale != TensorScale::kNone || format.element == Element::kE4M3 ||
         format.scale == ScaleCodec::kE4M3 ||
         (format.scale == ScaleCodec::kFloat && format.group_cols == 0);
}

// Copies one row's group scales to lane `lane` of its row group.
void copy_scales(const PackedWeights& packed, const StoredMatrix& m, int64_t row, int lane,
                 uint8_t* lines) {
  const Format& format = *packed.format;
  const int64_t count = row_scales(format, m.cols);
  const int64_t first = format.group_rows == 0 ? 0 : row / format.group_rows * count;
  if (packed.scale == GroupScale::kF32x128) {
    auto* floats = reinterpret_cast<float*>(lines);
    for (int64_t g = 0; g < count; ++g)
      floats[g * kRows + lane] = decode_scale(format, m, first + g);
    return;
  }
  // Negative scales are refused when a model is loaded; what is left of the sign is that of -0.
  const uint8_t mask = packed.scale == GroupScale::kE4M3x16 ? 0x7f : 0xff;
  const auto* source = reinterpret_cast<const uint8_t*>(m.scales) + first;
  for (int64_t g = 0; g < count; ++g) lines[g * kRows + lane] = source[g] & mask;
}

// One row's weights as int8 codes and the scales of their groups (reference/quantize.h,
// requantize_int8).
void requantize_row(const PackedWeights& packed, const StoredMatrix& m, int64_t row, int lane,
                    uint32_t* words, uint8_t* lines, std::vector<float>& values) {
  values.resize(m.cols);
  decode_row(*packed.format, m, row, values.data());
  auto* codes = reinterpret_cast<int8_t*>(words);
  auto* scales = reinterpret_cast<float*>(lines);
  for (int64_t first = 0; first < m.cols; first += kInt8WeightGroup) {
    const int64_t end = std::min<int64_t>(m.cols, first + kInt8WeightGroup);
    float largest = 0;
    for (int64_t c = first; c < end; ++c) largest = std::max(largest, std::abs(values[c]));
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    for (int64_t c = first; c < end; ++c)
      codes[c] = static_cast<int8_t>(std::nearbyint(values[c] * inverse));
    scales[first / kInt8WeightGroup * kRows + lane] = largest / 127.0f;
  }
}

// Scratch of one thread.
struct GroupScratch {
  std::vector<uint32_t> words;  // [16, words of a row]
  std::vector<float> values;
};

void pack_group(const StoredLinear& linear, PackedWeights& packed, int expert, int64_t group,
                GroupScratch& scratch) {
  scratch.words.resize(packed.words * kRows);
  uint32_t* rows = scratch.words.data();
  std::memset(rows, 0, packed.words * kRows * sizeof(uint32_t));
  const int64_t first_row = (expert * packed.row_groups + group) * kRows;
  uint8_t* scales = packed.scales.size()
                        ? packed.scales.as<uint8_t>() + first_row / kRows * packed.scale_stride()
                        : nullptr;
  for (int lane = 0; lane < kRows; ++lane) {
    const int64_t logical = logical_row(group, lane, packed.out, linear.spec->row_order);
    if (logical < 0) continue;
    const StoredRow row = stored_row(linear, expert, logical);
    uint32_t* words = rows + lane * packed.words;
    if (packed.form.int8_weights) {
      requantize_row(packed, *row.matrix, row.row, lane, words, scales, scratch.values);
    } else {
      copy_codes(*linear.format, *row.matrix, row.row, words);
      if (scales) copy_scales(packed, *row.matrix, row.row, lane, scales);
    }
    if (!packed.row_scale.empty()) {
      packed.row_scale[first_row + lane] = row_factor(*linear.format, *row.matrix, row.row);
    }
    if (!packed.bias.empty()) {
      packed.bias[first_row + lane] = stored_bias(linear, expert, logical);
    }
  }
  uint32_t* codes = packed.codes.as<uint32_t>() + first_row * packed.words;
  for (int64_t w = 0; w < packed.words; ++w) {
    for (int lane = 0; lane < kRows; ++lane)
      codes[w * kRows + lane] = rows[lane * packed.words + w];
  }
}

// Rows packed between two gifts of mapped pages: 32 MiB of the file. A vocabulary's matrix has over
// a gigabyte.
int64_t rows_at_once(int64_t row_bytes) {
  return std::max<int64_t>(1, (int64_t{32} << 20) / row_bytes / kRows) * kRows;
}

int64_t scales_size(const Format& format, const StoredMatrix& m) {
  return matrix_scales(format, m.rows, m.cols) * static_cast<int64_t>(dtype_size(m.scale_dtype));
}

void pack_table(const StoredLinear& linear, PackedWeights& packed, bool drop) {
  const StoredMatrix& m = linear.experts[0][0];
  LK_CHECK(linear.experts[0].size() == 1 && !m.transposed);
  packed.row_major = true;
  packed.table = m;
  packed.codes = AlignedBuffer(m.rows * m.row_bytes);
  packed.table.codes = packed.codes.data();
  const int64_t step = rows_at_once(m.row_bytes);
  for (int64_t first = 0; first < m.rows; first += step) {
    const int64_t size = std::min(step, m.rows - first) * m.row_bytes;
    std::memcpy(packed.codes.data() + first * m.row_bytes, m.codes + first * m.row_bytes, size);
    if (drop) drop_mapped_pages(m.codes + first * m.row_bytes, size);
  }
  if (!m.scales) return;
  packed.scales = AlignedBuffer(scales_size(*linear.format, m));
  std::memcpy(packed.scales.data(), m.scales, packed.scales.size());
  packed.table.scales = packed.scales.data();
}

}  // namespace

GroupScale group_scale(const Format& format) {
  if (format.scale == ScaleCodec::kNone || format.group_cols == 0) return GroupScale::kNone;
  const GroupScale scale = format.scale == ScaleCodec::kE8M0   ? GroupScale::kE8M0x32
                           : format.scale == ScaleCodec::kE4M3 ? GroupScale::kE4M3x16
                                                               : GroupScale::kF32x128;
  LK_CHECK(format.group_cols == scale_channels(scale));
  return scale;
}

int64_t row_group_count(int64_t rows, RowOrder order) {
  return order == RowOrder::kPlain ? ceil_div(rows, kRows) : 2 * ceil_div(rows / 2, kRows);
}

int64_t logical_row(int64_t group, int lane, int64_t rows, RowOrder order) {
  if (order == RowOrder::kPlain) {
    const int64_t row = group * kRows + lane;
    return row < rows ? row : -1;
  }
  const int64_t unit = group / 2 * kRows + lane;
  if (unit >= rows / 2) return -1;
  const bool up = group % 2;
  return order == RowOrder::kInterleavedGateUp ? 2 * unit + up : unit + (up ? rows / 2 : 0);
}

std::unique_ptr<PackedWeights> pack_weights(const StoredLinear& linear, const ProductForm& form,
                                            bool drop, ThreadPool& pool) {
  auto packed = std::make_unique<PackedWeights>();
  const LinearSpec& spec = *linear.spec;
  packed->format = linear.format;
  packed->form = form;
  packed->stage = spec.stage;
  packed->experts = linear.expert_count();
  packed->out = spec.out;
  packed->in = spec.in;
  packed->padded_in = ceil_div(spec.in, kGroup) * kGroup;
  if (spec.stage == Stage::kEmbedding) {
    pack_table(linear, *packed, drop);
    return packed;
  }
  packed->gated = spec.row_order != RowOrder::kPlain;
  packed->row_groups = row_group_count(spec.out, spec.row_order);
  const int code_bits = form.int8_weights ? 8 : element_bits(linear.format->element);
  packed->words = packed->padded_in * code_bits / 32;
  const int64_t groups = packed->experts * packed->row_groups;
  // The kernels load E2M1 words up to 3 bytes past a line.
  packed->codes = AlignedBuffer(groups * packed->words * kRows * sizeof(uint32_t) + 64);
  packed->scale = form.int8_weights ? GroupScale::kF32x128 : group_scale(*linear.format);
  if (packed->scale != GroupScale::kNone) {
    // Whole sums of kGroup channels, so that the padding's scales exist (as 0).
    const int channels = scale_channels(packed->scale);
    packed->scale_lines = ceil_div(packed->padded_in, channels);
    packed->scales = AlignedBuffer(groups * packed->scale_stride());
  }
  if (!form.int8_weights && has_row_factor(*linear.format))
    packed->row_scale.assign(groups * kRows, 0.0f);
  if (linear.bias.data) packed->bias.assign(groups * kRows, 0.0f);

  for (int e = 0; e < packed->experts; ++e) packed->input_scale.push_back(input_scale(linear, e));

  std::vector<GroupScratch> scratch(pool.threads());
  // Where pages are dropped, file and copy are never both resident in whole: one expert at a time,
  // a dense matrix by blocks of rows.
  for (int e = 0; e < packed->experts; ++e) {
    const StoredMatrix& front = linear.experts[e][0];
    const bool by_rows =
        drop && !packed->gated && linear.experts[e].size() == 1 && !front.transposed;
    const int64_t step = by_rows ? rows_at_once(front.row_bytes) / kRows : packed->row_groups;
    for (int64_t first = 0; first < packed->row_groups; first += step) {
      const int64_t count = std::min(step, packed->row_groups - first);
      pool.run(count, 4, [&](int64_t i, int thread) {
        pack_group(linear, *packed, e, first + i, scratch[thread]);
      });
      if (!by_rows) continue;
      const int64_t row = first * kRows, end = std::min(front.rows, row + count * kRows);
      drop_mapped_pages(front.codes + row * front.row_bytes, (end - row) * front.row_bytes);
    }
    if (!drop) continue;
    for (const StoredMatrix& m : linear.experts[e]) {
      drop_mapped_pages(m.codes,
                        static_cast<size_t>(code_bytes(linear.format->element, m.cols)) * m.rows);
      if (m.scales) drop_mapped_pages(m.scales, scales_size(*linear.format, m));
    }
  }
  return packed;
}

std::unique_ptr<PackedLora> pack_lora_pairs(const LinearSpec& spec,
                                            std::span<const LoraSource> experts) {
  auto packed = std::make_unique<PackedLora>();
  const int64_t groups = row_group_count(spec.out, spec.row_order);
  size_t values = 0;
  for (const LoraSource& e : experts) values += size_t(e.rank) * (spec.in + groups * kRows);
  packed->storage = AlignedBuffer(values * sizeof(uint16_t));
  uint16_t* next = packed->storage.as<uint16_t>();
  for (const LoraSource& e : experts) {
    PackedLora::Pair pair{e.rank, e.scale, nullptr, nullptr};
    if (e.rank > 0) {
      pair.a = next;
      std::memcpy(next, e.a, e.rank * spec.in * sizeof(uint16_t));
      next += e.rank * spec.in;
      pair.b = next;
      for (int64_t g = 0; g < groups; ++g) {
        for (int lane = 0; lane < kRows; ++lane) {
          const int64_t row = logical_row(g, lane, spec.out, spec.row_order);
          if (row < 0) continue;
          for (int r = 0; r < e.rank; ++r)
            next[(g * e.rank + r) * kRows + lane] = e.b[row * e.rank + r];
        }
      }
      next += groups * e.rank * kRows;
    }
    packed->max_rank = std::max(packed->max_rank, e.rank);
    packed->experts.push_back(pair);
  }
  return packed;
}

void unpack_row(const PackedWeights& weights, int64_t row, float* out) {
  LK_CHECK(weights.row_major);
  decode_row(*weights.format, weights.table, row, out);
}

}  // namespace lk::cpu
