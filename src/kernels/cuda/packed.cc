#include "kernels/cuda/packed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/mmap_file.h"
#include "base/numeric.h"
#include "kernels/cuda/linears.h"
#include "kernels/cuda/tile_codes.h"

namespace lk::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Codec codec_of(const Format& format, const ProductForm& form) {
  const bool codes = form.activations == ActivationForm::kE4M3;
  LK_CHECK(codes || form.activations == ActivationForm::kUnquantized);
  LK_CHECK(!form.int8_weights && !form.plain_loops);
  const bool by_group = format.scale != ScaleCodec::kNone && format.group_cols > 0;
  LK_CHECK(!codes || format.element == Element::kE4M3);
  switch (format.element) {
    case Element::kE2M1:
      LK_CHECK(by_group && format.group_cols == (format.scale == ScaleCodec::kE8M0 ? 32 : 16));
      return format.scale == ScaleCodec::kE8M0 ? Codec::kMxfp4 : Codec::kNvfp4;
    case Element::kE4M3:
      if (!by_group) return codes ? Codec::kFp8Codes : Codec::kFp8;
      LK_CHECK(format.group_cols == (format.scale == ScaleCodec::kE8M0 ? 32 : kScaleBlock));
      if (format.scale == ScaleCodec::kE8M0) return codes ? Codec::kMxfp8Codes : Codec::kMxfp8;
      return codes ? Codec::kFp8BlockCodes : Codec::kFp8Block;
    default:
      return Codec::kBf16;
  }
}

// What run_linear computes, but for routers, whose rows of x are two.
bool is_dense(Stage stage) {
  switch (stage) {
    case Stage::kEmbedding:
    case Stage::kRouter:
    case Stage::kExpertUp:
    case Stage::kExpertDown:
    case Stage::kSharedUp:
    case Stage::kSharedDown:
    case Stage::kSharedGate:
      return false;
    default:
      return true;
  }
}

// Rows of one matrix of the file that a piece has read.
struct Touched {
  const StoredMatrix* matrix = nullptr;
  int64_t first = 0, end = 0;
};

class Packer {
 public:
  Packer(const StoredLinear& linear, PackedWeights& weights, bool drop)
      : linear_(linear), weights_(weights), drop_(drop) {
    const Matrix& m = weights.matrix;
    factor_.assign(weights.experts * int64_t{m.row_tiles} * kTileRows, 0.0f);
    bias_.assign(factor_.size(), 0.0f);
    if (has_blocks(weights.codec)) block_.assign(factor_.size() * m.k_blocks, 0.0f);
  }

  size_t tile_row_bytes() const {
    return size_t(weights_.matrix.k_tiles) * record_bytes(weights_.codec);
  }

  // Rows of tiles from `first` on.
  void pack(std::span<std::byte> piece, int64_t first) {
    std::memset(piece.data(), 0, piece.size());
    std::array<Touched, 2> touched;
    int64_t expert = -1;
    const auto count = static_cast<int64_t>(piece.size() / tile_row_bytes());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (first + i) / weights_.matrix.row_tiles;
      if (at != expert) drop(touched);
      expert = at;
      pack_tile_row(first + i, reinterpret_cast<uint8_t*>(piece.data()) + i * tile_row_bytes(),
                    touched);
    }
    drop(touched);
  }

  std::vector<float> factor_, bias_, block_;

 private:
  void pack_tile_row(int64_t tile, uint8_t* records, std::array<Touched, 2>& touched) {
    const Matrix& m = weights_.matrix;
    const Format& format = *linear_.format;
    const int expert = static_cast<int>(tile / m.row_tiles);
    const int k_tiles = m.k_tiles / m.parts;
    const int64_t row_bytes = int64_t{k_tiles} * code_pieces(weights_.codec) * 32;
    thread_local std::vector<uint8_t> codes;
    codes.resize(row_bytes);
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t packed_row = tile % m.row_tiles * kTileRows + r;
      const int64_t logical = logical_row(*linear_.spec, packed_row);
      if (logical < 0) continue;
      const StoredRow row = stored_row(linear_, expert, logical);
      const StoredMatrix& stored = *row.matrix;
      note(touched, stored, row.row);
      const int64_t filled = load_codes(stored, row.row, codes.data());
      std::memset(codes.data() + filled, 0, row_bytes - filled);
      const int64_t at = tile * kTileRows + r;
      factor_[at] = row_factor(stored, row.row);
      bias_[at] = stored_bias(linear_, expert, logical);
      if (has_blocks(weights_.codec)) {
        const int64_t base = row.row / format.group_rows * row_scales(format, stored.cols);
        for (int b = 0; b < row_scales(format, stored.cols); ++b) {
          block_[(tile * m.k_blocks + b) * kTileRows + r] =
              decode_scale(format, stored, base + b) * tensor_factor(format, stored);
        }
      } else if (tile_scale_bytes(weights_.codec) > 0) {
        place_scales(stored, row.row, r, codes.data(), records, factor_[at]);
      }
      place_codes(weights_.codec, codes.data(), k_tiles, r, records);
    }
    if (m.parts == 2) std::memcpy(records + tile_row_bytes() / 2, records, tile_row_bytes() / 2);
  }

  // One row's codes in the file's order (bfloat16 for wider elements); the bytes they take.
  int64_t load_codes(const StoredMatrix& m, int64_t row, uint8_t* to) const {
    const Element element = linear_.format->element;
    if (!is_bf16(weights_.codec) || (element == Element::kBF16 && !m.transposed)) {
      const int64_t size = code_bytes(element, m.cols);
      std::memcpy(to, m.codes + row * m.row_bytes, size);
      return size;
    }
    const int64_t size = element_bits(element) / 8;
    const std::byte* from = m.transposed ? m.codes + row * size : m.codes + row * m.row_bytes;
    const int64_t step = m.transposed ? m.rows * size : size;
    for (int64_t c = 0; c < m.cols; ++c) {
      uint16_t bits = 0;
      if (element == Element::kF32) {
        float value;
        std::memcpy(&value, from + c * step, 4);
        bits = f32_to_bf16(value);
      } else {
        std::memcpy(&bits, from + c * step, 2);
        if (element == Element::kF16) bits = f32_to_bf16(f16_to_f32(bits));
      }
      std::memcpy(to + 2 * c, &bits, 2);
    }
    return 2 * m.cols;
  }

  float row_factor(const StoredMatrix& m, int64_t row) const {
    const Format& format = *linear_.format;
    if (has_blocks(weights_.codec)) return 1.0f;
    float factor = tensor_factor(format, m);
    if (format.scale == ScaleCodec::kFloat && format.group_cols == 0)
      factor *= decode_scale(format, m, format.group_rows == 0 ? 0 : row / format.group_rows);
    if (weights_.codec == Codec::kNvfp4) factor *= kNvfp4Factor;
    return factor;
  }

  // Scales of groups, relative to the row's largest where they are powers of two.
  void place_scales(const StoredMatrix& m, int64_t row, int r, uint8_t* codes, uint8_t* records,
                    float& factor) const {
    const Format& format = *linear_.format;
    const int64_t count = row_scales(format, m.cols);
    const int64_t first = format.group_rows == 0 ? 0 : row / format.group_rows * count;
    const auto* from = reinterpret_cast<const uint8_t*>(m.scales) + first;
    const size_t stride = record_bytes(weights_.codec);
    uint8_t* to = records + code_pieces(weights_.codec) * 512 + r / 8;
    if (weights_.codec == Codec::kNvfp4) {
      for (int64_t g = 0; g < count; ++g) {
        const uint8_t code = from[g] & 0x7f;  // what is left of the sign is that of -0
        if (code == 0) std::memset(codes + g * 8, 0, 8);
        to[g / 4 * stride + (r % 8 * 4 + g % 4) * 2] = five_bit_exponent(code);
      }
      return;
    }
    const int largest = *std::max_element(from, from + count);
    const int top = weights_.codec == Codec::kMxfp4 ? kTopE2m1 : kTopE4m3;
    factor *= std::ldexp(1.0f, largest - 127);
    for (int64_t g = 0; g < count; ++g) {
      to[g / 2 * stride + (r % 8 * 2 + g % 2) * 2] =
          static_cast<uint8_t>(std::max(0, from[g] + top - largest));
    }
  }

  void note(std::array<Touched, 2>& touched, const StoredMatrix& m, int64_t row) const {
    for (Touched& t : touched) {
      if (t.matrix && t.matrix != &m) continue;
      t = {&m, t.matrix ? std::min(t.first, row) : row, std::max(t.end, row + 1)};
      return;
    }
  }
  void drop(std::array<Touched, 2>& touched) const {
    for (Touched& t : touched) {
      if (drop_ && t.matrix && !t.matrix->transposed) {
        drop_mapped_pages(t.matrix->codes + t.first * t.matrix->row_bytes,
                          (t.end - t.first) * t.matrix->row_bytes);
      }
      t = {};
    }
  }

  const StoredLinear& linear_;
  PackedWeights& weights_;
  const bool drop_;
};

void put(CudaDevice& device, void* to, const void* from, size_t bytes) {
  device.fill(to, bytes, 4, [&](std::span<std::byte> piece, size_t offset) {
    std::memcpy(piece.data(), static_cast<const std::byte*>(from) + offset, piece.size());
  });
}

void drop_all(const StoredLinear& linear) {
  for (const auto& parts : linear.experts) {
    for (const StoredMatrix& m : parts) {
      drop_mapped_pages(m.codes, m.transposed
                                     ? m.rows * m.cols * element_bits(linear.format->element) / 8
                                     : m.rows * m.row_bytes);
      if (m.scales) {
        drop_mapped_pages(m.scales, matrix_scales(*linear.format, m.rows, m.cols) *
                                        static_cast<int64_t>(dtype_size(m.scale_dtype)));
      }
    }
  }
}

void pack_table(CudaDevice& device, const StoredLinear& linear, PackedWeights& weights) {
  const StoredMatrix& m = linear.experts[0][0];
  const Format& format = *linear.format;
  LK_CHECK(linear.experts[0].size() == 1 && !m.transposed);
  Table& table = weights.table;
  table.row_bytes = m.row_bytes;
  table.element = format.element;
  table.in = static_cast<int>(m.cols);
  weights.records = DeviceBuffer(device, m.rows * m.row_bytes, MemoryUse::kWeights);
  table.codes = weights.records.as<uint8_t>();
  put(device, weights.records.data(), m.codes, m.rows * m.row_bytes);
  // Scales and what multiplies them as one number each.
  const bool scaled =
      format.scale != ScaleCodec::kNone || format.tensor_scale != TensorScale::kNone;
  if (!scaled) return;
  table.group_rows = format.scale == ScaleCodec::kNone ? 0 : format.group_rows;
  table.group_cols = format.scale == ScaleCodec::kNone ? 0 : format.group_cols;
  const int64_t count = std::max<int64_t>(1, matrix_scales(format, m.rows, m.cols));
  table.row_scales = static_cast<int>(std::max<int64_t>(1, row_scales(format, m.cols)));
  std::vector<float> scales(count);
  for (int64_t i = 0; i < count; ++i) {
    const float scale = decode_scale(format, m, i);
    scales[i] = format.tensor_scale == TensorScale::kDivide ? scale / m.tensor_scale
                                                            : scale * m.tensor_scale;
  }
  weights.rows = DeviceBuffer(device, count * sizeof(float), MemoryUse::kWeights);
  table.scales = weights.rows.as<float>();
  put(device, weights.rows.data(), scales.data(), count * sizeof(float));
}

}  // namespace

int64_t logical_row(const LinearSpec& spec, int64_t row) {
  if (spec.row_order == RowOrder::kPlain) return row < spec.out ? row : -1;
  const int64_t unit = row / kTileRows * 8 + row % 8, units = spec.out / 2;
  const bool up = row % kTileRows >= 8;
  if (unit >= units) return -1;
  return spec.row_order == RowOrder::kInterleavedGateUp ? 2 * unit + up : unit + (up ? units : 0);
}

std::unique_ptr<Weights> pack_weights(CudaDevice& device, const StoredLinear& linear,
                                      const ProductForm& form, bool drop) {
  const LinearSpec& spec = *linear.spec;
  auto weights = std::make_unique<PackedWeights>();
  weights->form = form;
  weights->out = spec.out;
  weights->in = spec.in;
  weights->experts = linear.expert_count();
  if (spec.stage == Stage::kEmbedding) {
    pack_table(device, linear, *weights);
    if (drop) drop_all(linear);
    return weights;
  }
  weights->codec = codec_of(*linear.format, form);
  if (weights->codec == Codec::kBf16 && is_dense(spec.stage)) {
    LK_CHECK(weights->experts == 1 && spec.row_order == RowOrder::kPlain);
    LK_CHECK(linear.format->scale == ScaleCodec::kNone);
    LK_CHECK(linear.format->tensor_scale == TensorScale::kNone);
    weights->codec = Codec::kBf16Rows;
  }
  LK_CHECK(!meets_codes(weights->codec) || spec.experts > 0);  // run_experts makes codes, alone
  Matrix& m = weights->matrix;
  m.gated = spec.row_order != RowOrder::kPlain;
  m.interleaved = spec.row_order == RowOrder::kInterleavedGateUp;
  m.out = static_cast<int>(spec.out);
  m.in = static_cast<int>(spec.in);
  m.row_tiles = static_cast<int>(m.gated ? ceil_div(spec.out / 2, kTileRows / 2)
                                         : ceil_div(spec.out, kTileRows));
  m.parts = spec.stage == Stage::kRouter && weights->codec == Codec::kBf16 ? 2 : 1;
  m.k_tiles = m.parts * static_cast<int>(ceil_div(spec.in, kTileCols));
  m.k_blocks = static_cast<int>(ceil_div(spec.in, kScaleBlock));

  Packer packer(linear, *weights, drop);
  const size_t granule = packer.tile_row_bytes();
  const size_t bytes = granule * m.row_tiles * weights->experts;
  weights->records = DeviceBuffer(device, bytes, MemoryUse::kWeights);
  m.records = weights->records.as<uint8_t>();
  device.fill(weights->records.data(), bytes, granule,
              [&](std::span<std::byte> piece, size_t offset) {
                packer.pack(piece, static_cast<int64_t>(offset / granule));
              });
  const size_t rows = packer.factor_.size();
  std::vector<float> all = std::move(packer.factor_);
  all.insert(all.end(), packer.bias_.begin(), packer.bias_.end());
  if (meets_codes(weights->codec) && scale_of_codes(weights->codec).group == 0) {
    for (int e = 0; e < weights->experts; ++e) all.push_back(input_scale(linear, e));
  }
  weights->rows = DeviceBuffer(device, all.size() * sizeof(float), MemoryUse::kWeights);
  m.factor = weights->rows.as<float>();
  m.bias = m.factor + rows;
  weights->biased = std::any_of(packer.bias_.begin(), packer.bias_.end(),
                                [](float bias) { return bias != 0.0f; });
  if (std::any_of(all.begin() + 2 * rows, all.end(), [](float scale) { return scale > 0; }))
    m.input_scale = m.bias + rows;
  put(device, weights->rows.data(), all.data(), all.size() * sizeof(float));
  if (!packer.block_.empty()) {
    weights->blocks =
        DeviceBuffer(device, packer.block_.size() * sizeof(float), MemoryUse::kWeights);
    m.block_scale = weights->blocks.as<float>();
    put(device, weights->blocks.data(), packer.block_.data(), weights->blocks.size());
  }
  if (drop) drop_all(linear);
  return weights;
}

std::unique_ptr<LoraWeights> pack_pairs(CudaDevice& device, const LinearSpec& spec,
                                        std::span<const LoraSource> experts) {
  auto pairs = std::make_unique<PackedPairs>();
  const int64_t width = ceil_div(spec.in, kTileCols) * kTileCols;
  const size_t head = ceil_div(experts.size() * sizeof(DevicePair), 256) * 256;
  size_t values = 0;
  for (const LoraSource& e : experts) {
    pairs->rank = std::max(pairs->rank, e.rank);
    values += ceil_div(e.rank, 8) * 8 * (width + spec.out);
  }
  pairs->storage = DeviceBuffer(device, head + values * 2, MemoryUse::kAdapters);
  std::vector<std::byte> host(head + values * 2);
  auto* table = reinterpret_cast<DevicePair*>(host.data());
  size_t at = head;
  const auto address = [&] {
    return reinterpret_cast<const uint16_t*>(static_cast<std::byte*>(pairs->storage.data()) + at);
  };
  for (size_t e = 0; e < experts.size(); ++e) {
    const LoraSource& source = experts[e];
    const int rank = static_cast<int>(ceil_div(source.rank, 8) * 8);
    table[e] = {nullptr, nullptr, rank, source.scale};
    if (rank == 0) continue;
    table[e].a = address();
    for (int r = 0; r < source.rank; ++r)
      std::memcpy(host.data() + at + r * width * 2, source.a + r * spec.in, spec.in * 2);
    at += rank * width * 2;
    table[e].b = address();
    for (int64_t o = 0; o < spec.out; ++o) {
      std::memcpy(host.data() + at + o * rank * 2, source.b + o * source.rank, source.rank * 2);
    }
    at += rank * spec.out * 2;
  }
  put(device, pairs->storage.data(), host.data(), host.size());
  return pairs;
}

}  // namespace lk::cuda
