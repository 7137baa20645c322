// Weights and adapters as the CPU kernels read them. Rows stand in groups of 16; a group is a run
// of 64-byte lines, and line w holds the 32-bit word w of each of the 16 rows (8 E2M1, 2 bfloat16
// ... codes of consecutive input channels), so that one vector load serves 16 rows with the same
// activation broadcast. Scales of groups of channels likewise: 16 of one input group side by side.
// Requantized weights hold int8 codes, 4 a word, in place of the format's.
// All that scales a whole row (its channel, its tensor, the bias of a codec's exponent) is one
// factor of that row. Immutable after packing.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace lk::cpu {

inline constexpr int kRows = 16;  // rows of a row group
// Input channels summed before a scale is applied, also where there is none; fewer only where fewer
// share a scale.
inline constexpr int kGroup = 32;

// How scales of groups of channels are stored: codec and channels.
enum class GroupScale : uint8_t { kNone, kE8M0x32, kE4M3x16, kF32x128 };
GroupScale group_scale(const Format& format);
constexpr int scale_channels(GroupScale scale) {
  return scale == GroupScale::kE4M3x16 ? 16 : scale == GroupScale::kF32x128 ? 128 : 32;
}
constexpr int scale_bytes(GroupScale scale) { return scale == GroupScale::kF32x128 ? 4 : 1; }

// E4M3 codes and scales are decoded to 2^-8 of their value: their bits, moved to the place of a
// binary16's, need no further step. The row's factor holds the 2^8.
inline constexpr float kE4m3Factor = 256.0f;

struct PackedWeights : Weights {
  const Format* format = nullptr;
  Stage stage = Stage::kHead;
  int experts = 1;
  bool gated = false;      // row groups alternate: 16 gate rows, then the same 16 units' up rows
  bool row_major = false;  // a lookup table: codes and scales as in the file, no groups
  int64_t row_groups = 0;  // of one expert
  int64_t padded_in = 0;   // in, rounded up to kGroup; the padding's codes are 0
  int64_t words = 0;       // 32-bit words of one row
  GroupScale scale = GroupScale::kNone;
  int64_t scale_lines = 0;  // groups of channels that have a scale, of one row
  AlignedBuffer codes;      // [experts][row_groups][words][16] uint32
  AlignedBuffer scales;     // [experts][row_groups][scale_lines][16] uint8 or float; may be empty
  std::vector<float> row_scale;    // [experts][row_groups * 16]; empty without
  std::vector<float> input_scale;  // [experts] of static activations, 0: none
  std::vector<float> bias;  // [experts][row_groups * 16], in packed row order; empty without bias
  StoredMatrix table;       // row_major only: views of `codes` and `scales`

  size_t bytes() const override {
    return codes.size() + scales.size() + (bias.size() + row_scale.size()) * sizeof(float);
  }
  const uint32_t* group_codes(int expert, int64_t group) const {
    return codes.as<uint32_t>() + (expert * row_groups + group) * words * kRows;
  }
  // Bytes of one row group's scales.
  int64_t scale_stride() const { return scale_lines * kRows * scale_bytes(scale); }
  const uint8_t* group_scales(int expert, int64_t group) const {
    return scales.as<uint8_t>() + (expert * row_groups + group) * scale_stride();
  }
  const float* group_row_scale(int expert, int64_t group) const {
    return row_scale.empty() ? nullptr : row_scale.data() + (expert * row_groups + group) * kRows;
  }
  const float* group_bias(int expert, int64_t group) const {
    return bias.empty() ? nullptr : bias.data() + (expert * row_groups + group) * kRows;
  }
};

struct PackedLora : LoraWeights {
  struct Pair {
    int rank = 0;
    float scale = 0;
    const uint16_t* a = nullptr;  // [rank, in]
    const uint16_t* b = nullptr;  // [row_groups, rank, 16], in packed row order
  };
  std::vector<Pair> experts;
  int max_rank = 0;
  AlignedBuffer storage;
  size_t bytes() const override { return storage.size() + experts.size() * sizeof(Pair); }
};

// The logical row behind packed row (group, lane), or -1 for padding. `rows`: rows of the linear;
// gated ones are split by 16.
int64_t logical_row(int64_t group, int lane, int64_t rows, RowOrder order);
int64_t row_group_count(int64_t rows, RowOrder order);

std::unique_ptr<PackedWeights> pack_weights(const StoredLinear& linear, const ProductForm& form,
                                            bool drop, ThreadPool& pool);
std::unique_ptr<PackedLora> pack_lora_pairs(const LinearSpec& spec,
                                            std::span<const LoraSource> experts);

// Row `row` of a lookup table as float32.
void unpack_row(const PackedWeights& weights, int64_t row, float* out);

}  // namespace lk::cpu
