// Weights and adapters as the GPU's products read them. A matrix is cut into tiles of 16 rows by 64
// channels, one record each; a row of tiles is a run of records (but for kBf16Rows). Lane l of a
// warp owns rows l / 4 and l / 4 + 8 of a tile and the 16 channels from (l % 4) * 16 on: its codes
// are the A fragments of four mma.m16n8k16, whose contraction may run over the channels in any
// order that both operands share. A record holds pieces of 16 bytes a lane, then the tile's scales,
// 2 bytes a lane (row l / 4, then row l / 4 + 8). Where E4M3 meets E4M3 a record is two
// mma.m16n8k32, and a lane's channels are 8 from (l % 4) * 8 on and 8 from there + 32, so that a
// product stays within 32. What scales a whole row is one float32 factor. Gated linears have the
// gates of 8 units in the upper half of a tile and their ups in the lower one. Immutable.
#pragma once

#include <cstdint>

#include "backend/device_buffer.h"
#include "kernels/kernels.h"

namespace lk::cuda {

inline constexpr int kTileRows = 16, kTileCols = 64;
inline constexpr int kScaleBlock = 128;  // channels that share a float32 scale

enum class Codec : uint8_t {
  kBf16,      // bfloat16, also in place of float16 and float32
  kBf16Rows,  // the same of linears that cuBLASLt computes too: one row after the other, [row_tiles
              // * 16, k_tiles * 64], zeros where the matrix has nothing
  kMxfp4,     // E2M1, E8M0 scales of 32 channels
  kNvfp4,     // E2M1, E4M3 scales of 16 channels, stored with five bits of exponent
  kFp8,       // E4M3, scaled by rows only
  kMxfp8,     // E4M3, E8M0 scales of 32 channels
  kFp8Block,  // E4M3, float32 scales of 128 channels
  // The same three for activations in E4M3.
  kFp8Codes,
  kMxfp8Codes,
  kFp8BlockCodes,
};
constexpr bool is_bf16(Codec codec) { return codec == Codec::kBf16 || codec == Codec::kBf16Rows; }
constexpr bool meets_codes(Codec codec) { return codec >= Codec::kFp8Codes; }
constexpr bool has_blocks(Codec codec) {
  return codec == Codec::kFp8Block || codec == Codec::kFp8BlockCodes;
}
constexpr bool has_e8m0_bytes(Codec codec) {
  return codec == Codec::kMxfp8 || codec == Codec::kMxfp8Codes;
}
constexpr int code_pieces(Codec codec) {
  return is_bf16(codec) ? 4 : codec == Codec::kMxfp4 || codec == Codec::kNvfp4 ? 1 : 2;
}
constexpr int tile_scale_bytes(Codec codec) {
  return codec == Codec::kMxfp4 || has_e8m0_bytes(codec) ? 32 : codec == Codec::kNvfp4 ? 64 : 0;
}
constexpr int record_bytes(Codec codec) {
  return code_pieces(codec) * 512 + tile_scale_bytes(codec);
}
// How activations are scaled that these codes meet.
constexpr ActivationScale scale_of_codes(Codec codec) {
  if (codec == Codec::kMxfp8Codes) return {.group = 32, .power_of_two = true};
  return {.group = codec == Codec::kFp8BlockCodes ? kScaleBlock : 0};
}
// Where such activations keep the 8 channels from `channel` on, in a row of tiles.
constexpr int place_of_codes(int channel) {
  return channel / kTileCols * kTileCols + channel / 8 % 4 * 16 + channel / 32 % 2 * 8;
}

// Bfloat16 exponents of scales. A code's bits, moved to the low end of a bfloat16's exponent, stand
// for 2^-126 (E2M1) or 2^-120 (E4M3) of its value; a scale's byte, moved to the exponent, takes
// that back and scales by at most 1 (E8M0). The row's factor holds the rest, so that nothing
// overflows.
inline constexpr int kTopE2m1 = 253, kTopE4m3 = 247;
// E4M3 scales as 5 bits of exponent and 3 of fraction: field 0 is 2^-9, and 236 + field the
// bfloat16's; 2^8 goes to the row's factor.
inline constexpr int kNvfp4Field = 236;
inline constexpr float kNvfp4Factor = 256.0f;

// What kernels read of a linear.
struct Matrix {
  const uint8_t* records = nullptr;    // [experts][row_tiles][k_tiles] records, or rows
  const float* factor = nullptr;       // [experts][row_tiles * 16]
  const float* bias = nullptr;         // [experts][row_tiles * 16]
  const float* block_scale = nullptr;  // [experts][row_tiles][k_blocks][16]; where there are blocks
  // [experts] of activations in E4M3 that are scaled by rows, 0: by their largest; null: all 0.
  const float* input_scale = nullptr;
  int row_tiles = 0, k_tiles = 0, k_blocks = 0;
  // 2: a row of tiles stands there twice, for rows of x that are two: bfloat16, and what that
  // leaves of float32. Routers are so: the choice of experts hangs on their last bits.
  int parts = 1;
  int out = 0, in = 0;
  bool gated = false, interleaved = false;
};

// A lookup table: codes as in the file, scales as float32.
struct Table {
  const uint8_t* codes = nullptr;  // [rows][row_bytes]
  const float* scales = nullptr;   // [ceil(rows / group_rows)][row_scales]
  int64_t row_bytes = 0;
  int row_scales = 0, group_rows = 1, group_cols = 0;  // groups of 0: all
  int in = 0;
  Element element = Element::kBF16;
};

struct PackedWeights : Weights {
  Codec codec = Codec::kBf16;
  int experts = 1;
  bool biased = false;  // some bias is not 0
  Matrix matrix;
  Table table;
  DeviceBuffer records, rows, blocks;
  size_t bytes() const override { return records.size() + rows.size() + blocks.size(); }
};

// One pair on the device. Rows of A have row_tiles' padded width; what the padding holds is 0.
struct DevicePair {
  const uint16_t* a = nullptr;  // [rank, k_tiles / parts * 64] bfloat16
  const uint16_t* b = nullptr;  // [out, rank], in the spec's row order
  int rank = 0;                 // a multiple of 8; 0: this expert is not adapted
  float scale = 0;
};

struct PackedPairs : LoraWeights {
  DeviceBuffer storage;  // [max(experts, 1)] DevicePair, then what they point to
  int rank = 0;
  size_t bytes() const override { return storage.size(); }
  const void* device_address() const override { return storage.data(); }
  int max_rank() const override { return rank; }
};

inline const PackedWeights& packed(const Linear& linear) {
  return *static_cast<const PackedWeights*>(linear.weights);
}

// The logical row behind packed row `row`, or -1 for padding.
int64_t logical_row(const LinearSpec& spec, int64_t row);

}  // namespace lk::cuda
