#include "kernels/cpu/packed.h"

#include <algorithm>
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

void pack_group(const StoredLinear& linear, PackedWeights& packed, int expert, int64_t group,
                uint32_t* rows) {
  std::memset(rows, 0, packed.words * kRows * sizeof(uint32_t));
  const int64_t scale_groups = packed.padded_in / kGroup;
  uint8_t* scales = packed.scales.size()
                        ? packed.scales.as<uint8_t>() +
                              (expert * packed.row_groups + group) * scale_groups * kRows
                        : nullptr;
  for (int lane = 0; lane < kRows; ++lane) {
    const int64_t logical = logical_row(group, lane, packed.out, linear.spec->row_order);
    if (logical < 0) continue;
    const StoredRow row = stored_row(linear, expert, logical);
    copy_codes(*linear.format, *row.matrix, row.row, rows + lane * packed.words);
    if (scales) {
      const auto* source = reinterpret_cast<const uint8_t*>(row.matrix->scales) +
                           row.row * ceil_div(packed.in, kGroup);
      for (int64_t g = 0; g < ceil_div(packed.in, kGroup); ++g)
        scales[g * kRows + lane] = source[g];
    }
    if (!packed.bias.empty()) {
      packed.bias[(expert * packed.row_groups + group) * kRows + lane] =
          stored_bias(linear, expert, logical);
    }
  }
  uint32_t* codes =
      packed.codes.as<uint32_t>() + (expert * packed.row_groups + group) * packed.words * kRows;
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

void pack_table(const StoredLinear& linear, PackedWeights& packed, bool drop) {
  packed.row_major = true;
  packed.row_bytes = code_bytes(linear.format->element, packed.in);
  packed.codes = AlignedBuffer(packed.out * packed.row_bytes);
  for (const StoredMatrix& m : linear.experts[0]) {
    const int64_t step = rows_at_once(m.row_bytes);
    for (int64_t first = 0; first < m.rows; first += step) {
      const int64_t end = std::min(m.rows, first + step);
      for (int64_t r = first; r < end; ++r) {
        std::memcpy(packed.codes.data() + r * packed.row_bytes, m.codes + r * m.row_bytes,
                    packed.row_bytes);
      }
      if (drop) drop_mapped_pages(m.codes + first * m.row_bytes, (end - first) * m.row_bytes);
    }
  }
}

}  // namespace

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

std::unique_ptr<PackedWeights> pack_weights(const StoredLinear& linear, bool drop,
                                            ThreadPool& pool) {
  auto packed = std::make_unique<PackedWeights>();
  const LinearSpec& spec = *linear.spec;
  packed->format = linear.format;
  packed->stage = spec.stage;
  packed->experts = linear.expert_count();
  packed->out = spec.out;
  packed->in = spec.in;
  packed->padded_in = ceil_div(spec.in, kGroup) * kGroup;
  if (spec.stage == Stage::kEmbedding && linear.format->scale == ScaleCodec::kNone &&
      linear.experts[0].size() == 1 && !linear.experts[0][0].transposed) {
    pack_table(linear, *packed, drop);
    return packed;
  }
  packed->gated = spec.row_order != RowOrder::kPlain;
  packed->row_groups = row_group_count(spec.out, spec.row_order);
  packed->words = packed->padded_in * element_bits(linear.format->element) / 32;
  const int64_t groups = packed->experts * packed->row_groups;
  // The kernels load E2M1 words up to 3 bytes past a line.
  packed->codes = AlignedBuffer(groups * packed->words * kRows * sizeof(uint32_t) + 64);
  if (linear.format->scale != ScaleCodec::kNone) {
    packed->scales = AlignedBuffer(groups * (packed->padded_in / kGroup) * kRows);
  }
  if (linear.bias.data) packed->bias.assign(groups * kRows, 0.0f);

  std::vector<std::vector<uint32_t>> rows(pool.threads());
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
        rows[thread].resize(packed->words * kRows);
        pack_group(linear, *packed, e, first + i, rows[thread].data());
      });
      if (!by_rows) continue;
      const int64_t row = first * kRows, end = std::min(front.rows, row + count * kRows);
      drop_mapped_pages(front.codes + row * front.row_bytes, (end - row) * front.row_bytes);
    }
    if (!drop) continue;
    for (const StoredMatrix& m : linear.experts[e]) {
      drop_mapped_pages(m.codes,
                        static_cast<size_t>(code_bytes(linear.format->element, m.cols)) * m.rows);
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
  StoredMatrix matrix;
  matrix.rows = 1;
  matrix.cols = weights.in;
  std::vector<uint32_t> words;
  std::vector<uint8_t> scales;
  if (weights.row_major) {
    matrix.codes = weights.codes.data() + row * weights.row_bytes;
    matrix.row_bytes = weights.row_bytes;
  } else {
    LK_CHECK(!weights.gated);
    const int64_t group = row / kRows, lane = row % kRows;
    words.resize(weights.words);
    for (int64_t w = 0; w < weights.words; ++w)
      words[w] = weights.group_codes(0, group)[w * kRows + lane];
    matrix.codes = reinterpret_cast<const std::byte*>(words.data());
    matrix.row_bytes = weights.words * 4;
    if (weights.scales.size()) {
      scales.resize(weights.padded_in / kGroup);
      for (size_t g = 0; g < scales.size(); ++g)
        scales[g] = weights.group_scales(0, group)[g * kRows + lane];
      matrix.scales = reinterpret_cast<const std::byte*>(scales.data());
    }
  }
  decode_row(*weights.format, matrix, 0, out);
}

}  // namespace lk::cpu
