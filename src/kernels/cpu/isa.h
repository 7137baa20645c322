// What an instruction set provides: the inner loops of the CPU kernels, each the work of one thread
// on one item. Every isa_<name>.cc fills the table from the same bodies (body/*.h). Results for one
// token do not depend on the other tokens of a call.
#pragma once

#include <cstdint>

#include "kernels/cpu/packed.h"
#include "kernels/kernels.h"

namespace lk::cpu {

// Tokens whose activations are interleaved for one pass of the inner loop.
struct Tile {
  const void* panel;  // made by pack_tile
  int tokens;         // 1 .. CpuProduct::max_tile
};

// Row groups that one call of gemm works on.
inline constexpr int kBlockGroups = 4;
inline constexpr int kBlockRows = kBlockGroups * kRows;

// acc[t][64] = W[expert, rows of the groups, :] . x[t, :], t over all tokens of the tiles in order.
struct GemmItem {
  const PackedWeights* weights;
  int expert;
  int64_t group;  // first row group
  int groups;     // 1 .. kBlockGroups
  const Tile* tiles;
  int tile_count;
  float* acc;      // out [tokens, kBlockRows], row group g at column 16 g
  float* scratch;  // decode_scratch() floats
};

struct AttentionItem {
  const float* q;    // [heads of this kv head, head_dim]
  const void* keys;  // cache base
  const void* values;
  KvType type;
  const int32_t* blocks;  // block table of the sequence
  int64_t block_stride;   // elements between blocks: kv_heads * head_dim * 16
  int64_t head_offset;    // kv_head * head_dim * 16
  int heads, head_dim;
  int first, last;  // keys [first, last]
  float scale;
  const float* sinks;  // [heads] or null
  float* scores;       // scratch [heads, last/16 - first/16 + 1, 16]
  float* out;          // [heads, head_dim]
};

// One token's causal convolution of `count` channels: out = silu(bias + sum_j weight[j] rows[j]).
inline constexpr int kMaxConvolution = 16;  // tokens that it sees at most
struct ConvolutionItem {
  const float* const* rows;  // [kernel] inputs, the oldest token's first
  int kernel;
  const float* weight;  // [kernel, count], rows `weight_stride` apart
  int64_t weight_stride;
  const float* bias;  // [count] or null
  int64_t count;
  float* out;  // [count]
};

// For each token: S = decay S; d = gain (v - S^T k), or gain v without `delta`; S += k d^T; out =
// S^T q, over a block of S's columns. The result does not depend on how tokens are dealt to calls,
// nor columns to blocks.
struct ScanItem {
  int tokens, key_dim;
  int columns;     // 1 .. CpuIsa::scan_columns
  const float* q;  // [tokens, key_dim]; q, k and v have rows `stride` apart
  const float* k;  // [tokens, key_dim]
  const float* v;  // [tokens, columns]
  int64_t stride;
  bool delta;
  const float* decay;  // [tokens], `rate_stride` apart
  const float* gain;   // [tokens], the same
  int64_t rate_stride;
  float* state;  // in, out [key_dim, columns], rows `state_stride` apart
  int64_t state_stride;
  bool fresh;      // the state is zero, whatever lies there
  float* scratch;  // [key_dim, scan_columns]
  float* out;      // [tokens, columns], rows `out_stride` apart
  int64_t out_stride;
};

// One token's LoRA term for the rows of a block.
struct LoraTerm {
  const PackedLora::Pair* pair = nullptr;  // null: none
  const float* z = nullptr;                // [rank] scale * A x
};

// A tile's activations to be interleaved for the products with one expert's weights.
struct TileRows {
  const float* const* rows;  // [tokens] each [weights->in]
  int tokens;
  const PackedWeights* weights;
  int expert;
  void* panel;  // out panel_bytes(*weights, tokens)
};

// The products of one ActivationForm.
struct CpuProduct {
  int max_tile;
  void (*pack_tile)(const TileRows&);
  size_t (*panel_bytes)(const PackedWeights& weights, int tokens);
  void (*gemm)(const GemmItem&);
};

struct CpuIsa {
  const char* name;
  int decode_scratch;      // floats
  int scan_columns;        // of a state that one scan works on
  CpuProduct products[3];  // by ActivationForm

  const CpuProduct& product(const PackedWeights& weights) const {
    return products[static_cast<int>(weights.form.activations)];
  }

  // z[r] = scale * sum_i a[r, i] x[i], r < rank. x is float32: what pack_tile makes of activations
  // has no type that fits.
  void (*shrink)(const uint16_t* a, const float* x, int64_t in, int rank, float scale, float* z);
  // row[16 g + lane] = (acc + bias) + sum_r z[r] b[group + g, r, lane]; in place.
  void (*add_bias_lora)(float* row, const float* bias, const LoraTerm& lora, int64_t group,
                        int groups);
  // g[i] = swiglu(gate row i, up row i) of a row that holds pairs of row groups (gate, up); count
  // <= 16 * groups / 2.
  void (*clamped_swiglu)(const float* row, int64_t count, float alpha, float limit, float* g);
  // The same, up * gate * sigmoid(gate).
  void (*swiglu)(const float* row, int64_t count, float* g);
  // g[i] = max(row[i], 0)^2, count <= 16 * groups.
  void (*relu2)(const float* row, int64_t count, float* g);

  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
  // RoPE on q and k of one token and the write of k and v to the cache at element offsets of
  // (block, slot).
  void (*rope)(float* x, int heads, int head_dim, int rotary, const float* cos, const float* sin);
  void (*attention)(const AttentionItem&);

  void (*convolve)(const ConvolutionItem&);
  void (*scan)(const ScanItem&);
  // x = factor x / sqrt(sum x^2 + 1e-6).
  void (*unit_length)(float* x, int64_t n, float factor);
  void (*gate_silu)(const float* gate, int64_t n, float* x);              // x *= gate sigmoid(gate)
  void (*gate_sigmoid)(const float* gate, int64_t n, float* x);           // x *= sigmoid(gate)
  void (*add_scaled)(const float* a, float factor, int64_t n, float* x);  // x += factor a
};

}  // namespace lk::cpu
