#include "adapters/pair_convert.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/numeric.h"

namespace lk {
namespace {

// Elements converted at a time: the block and its transposition stay in the L1 cache.
constexpr int64_t kBlockElements = 8192;

template <typename T>
T load(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

// A half as float32, finite values only, without a branch. The exponent is rebiased by a product.
float finite_f16_to_f32(uint16_t bits) {
  const float magnitude = std::bit_cast<float>(uint32_t{bits & 0x7fffu} << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) |
                              (uint32_t{bits & 0x8000u} << 16));
}

// Elements [first, first + count) times factor as bfloat16; false if one of them is not finite
// there.
bool read_bf16(const TensorView& tensor, int64_t first, int64_t count, float factor,
               uint16_t* out) {
  const std::byte* data = tensor.data + static_cast<size_t>(first) * dtype_size(tensor.dtype);
  unsigned bad = 0;
  switch (tensor.dtype) {
    case DType::kBF16:
      std::memcpy(out, data, static_cast<size_t>(count) * 2);
      if (factor != 1) {
        for (int64_t i = 0; i < count; ++i) out[i] = f32_to_bf16(bf16_to_f32(out[i]) * factor);
      }
      break;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) {
        const auto bits = load<uint16_t>(data, i);
        bad |= (bits & 0x7c00u) == 0x7c00u;
        out[i] = f32_to_bf16(finite_f16_to_f32(bits) * factor);
      }
      break;
    case DType::kF32:
      for (int64_t i = 0; i < count; ++i) out[i] = f32_to_bf16(load<float>(data, i) * factor);
      break;
    default:
      LK_CHECK(!"adapter tensor of a type that the loader lets through");
  }
  for (int64_t i = 0; i < count; ++i) bad |= (out[i] & 0x7f80u) == 0x7f80u;
  return bad == 0;
}

tl::unexpected<Error> not_finite(const std::string& name) {
  return invalid("tensor {} holds a value that is not finite, or too large for bfloat16", name);
}

// dst[c][r] = src[r][c] for a `rows` x `cols` matrix, in tiles.
void transpose(const uint16_t* src, int64_t rows, int64_t cols, uint16_t* dst) {
  constexpr int64_t kTile = 32;
  for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
    const int64_t c1 = std::min(c0 + kTile, cols);
    for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
      const int64_t r1 = std::min(r0 + kTile, rows);
      for (int64_t c = c0; c < c1; ++c) {
        for (int64_t r = r0; r < r1; ++r) dst[c * rows + r] = src[r * cols + c];
      }
    }
  }
}

// Rows of `tensor` in blocks: `each(block, first_row, rows)`.
template <typename Each>
bool for_row_blocks(const TensorView& tensor, int64_t rows_at_once, float factor, Each each) {
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  std::vector<uint16_t> block(static_cast<size_t>(std::min(rows_at_once, rows) * cols));
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    const int64_t n = std::min(rows_at_once, rows - row);
    if (!read_bf16(tensor, row * cols, n * cols, factor, block.data())) return false;
    each(block.data(), row, n);
  }
  return true;
}

// lora_A [experts * rank, n]: expert-major rows, so that each expert's matrix is one run.
bool read_a(const TensorView& a, const PairLayout& layout, int64_t rank,
            std::vector<LoraPair>& pairs) {
  const int64_t n = a.shape[1];
  std::vector<uint16_t> scratch;
  for (int64_t e = 0; e < layout.experts; ++e) {
    LoraPair& pair = pairs[static_cast<size_t>(e)];
    std::vector<uint16_t>& side = layout.swapped ? pair.b : pair.a;
    side.resize(static_cast<size_t>(rank * n));
    if (!layout.swapped) {
      if (!read_bf16(a, e * rank * n, rank * n, 1, side.data())) return false;
      continue;
    }
    scratch.resize(side.size());
    if (!read_bf16(a, e * rank * n, rank * n, layout.b_factor, scratch.data())) return false;
    transpose(scratch.data(), rank, n, side.data());
  }
  return true;
}

// lora_B [m, rank * experts]: rank-major columns. Standard: to [m, rank] for each expert.
bool read_b(const TensorView& b, const PairLayout& layout, int64_t rank,
            std::vector<LoraPair>& pairs) {
  const int64_t rows = b.shape[0], experts = layout.experts, cols = rank * experts;
  for (LoraPair& pair : pairs)
    (layout.swapped ? pair.a : pair.b).resize(static_cast<size_t>(rows * rank));
  if (experts == 1 && !layout.swapped)
    return read_bf16(b, 0, rows * cols, layout.b_factor, pairs[0].b.data());
  if (!layout.swapped) {
    const int64_t at_once = std::max<int64_t>(1, kBlockElements / cols);
    return for_row_blocks(b, at_once, layout.b_factor,
                          [&](const uint16_t* block, int64_t row, int64_t n) {
                            for (int64_t e = 0; e < experts; ++e) {
                              uint16_t* out = pairs[static_cast<size_t>(e)].b.data() + row * rank;
                              for (int64_t i = 0; i < n; ++i) {
                                const uint16_t* in = block + i * cols + e;
                                for (int64_t k = 0; k < rank; ++k) *out++ = in[k * experts];
                              }
                            }
                          });
  }
  // Swapped: to [rank, m] for each expert; a block of 32 rows gives runs of a cache line.
  return for_row_blocks(b, 32, 1, [&](const uint16_t* block, int64_t row, int64_t n) {
    for (int64_t k = 0; k < rank; ++k) {
      for (int64_t e = 0; e < experts; ++e) {
        uint16_t* out = pairs[static_cast<size_t>(e)].a.data() + k * rows + row;
        const uint16_t* in = block + k * experts + e;
        for (int64_t i = 0; i < n; ++i) out[i] = in[i * cols];
      }
    }
  });
}

}  // namespace

Result<std::vector<LoraPair>> extract_pairs(const RawPair& raw, const PairLayout& layout) {
  LK_CHECK(layout.experts > 0 && raw.a.shape[0] % layout.experts == 0 &&
           raw.a.shape[0] == raw.b.shape[1]);
  const int64_t rank = raw.a.shape[0] / layout.experts;
  std::vector<LoraPair> pairs(static_cast<size_t>(layout.experts));
  for (LoraPair& pair : pairs) pair.rank = static_cast<int>(rank);
  if (!read_a(raw.a, layout, rank, pairs)) return not_finite(raw.a_name);
  if (!read_b(raw.b, layout, rank, pairs)) return not_finite(raw.b_name);
  return pairs;
}

LoraPair fuse_gate_up(const LoraPair* gate, const LoraPair* up, int64_t out, RowOrder order) {
  LK_CHECK((gate || up) && out % 2 == 0 && order != RowOrder::kPlain);
  const int64_t half = out / 2;
  LoraPair fused;
  fused.scale = gate ? gate->scale : up->scale;
  fused.rank = (gate ? gate->rank : 0) + (up ? up->rank : 0);
  fused.b.resize(static_cast<size_t>(out * fused.rank));
  int64_t first_rank = 0;
  for (const LoraPair* part : {gate, up}) {
    if (!part) continue;
    fused.a.insert(fused.a.end(), part->a.begin(), part->a.end());
    const bool is_up = part == up;
    for (int64_t i = 0; i < half; ++i) {
      const int64_t row =
          order == RowOrder::kInterleavedGateUp ? 2 * i + is_up : i + (is_up ? half : 0);
      std::copy_n(part->b.begin() + i * part->rank, part->rank,
                  fused.b.begin() + row * fused.rank + first_rank);
    }
    first_rank += part->rank;
  }
  return fused;
}

}  // namespace lk
