// Dense linears and embedding rows.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/linears.h"

namespace lk::cuda {
namespace {

// Most rows of x a matrix, on average, that the small kernel takes: of experts, of dense linears
// with as many blocks of 128 rows as the GPU has multiprocessors, and of smaller ones.
constexpr int kSmallExpert = 20, kSmallLarge = 32, kSmallDense = 64;
// The same of linears that cuBLASLt computes beyond. Adapters have no say in it, though they cost
// another launch there: the base's bits are the same with and without.
constexpr int kSmallBesideBlasLarge = 16, kSmallBesideBlas = 16;

bool is_large(Context& context, const Matrix& m) {
  return m.row_tiles / 8 >= context.multiprocessors();
}

// bfloat16 rows whose width is no multiple of 64, with zeros behind them.
__global__ void pad_rows(const __nv_bfloat16* from, __nv_bfloat16* to, int64_t rows, int in,
                         int width) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * width; i += step) {
    const int column = static_cast<int>(i % width);
    to[i] = column < in ? from[i / width * in + column] : __float2bfloat16(0.0f);
  }
}

__device__ float element(const Table& t, const uint8_t* row, int i) {
  switch (t.element) {
    case Element::kF32:
      return reinterpret_cast<const float*>(row)[i];
    case Element::kBF16:
      return __uint_as_float(uint32_t{reinterpret_cast<const uint16_t*>(row)[i]} << 16);
    case Element::kF16: {
      float v;
      asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(reinterpret_cast<const uint16_t*>(row)[i]));
      return v;
    }
    case Element::kE4M3: {
      const uint32_t code = row[i];
      const float v = __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20);
      return (code & 0x7f) == 0x7f ? __uint_as_float(0x7fffffffu) : v * 0x1p120f;
    }
    case Element::kE2M1: {
      const uint32_t code = row[i / 2] >> (i % 2 * 4) & 15;
      return __uint_as_float((code & 8) << 28 | (code & 7) << 22) * 0x1p126f;
    }
  }
  return 0;
}

__global__ void embed(const Table t, const int32_t* tokens, const int32_t* slots,
                      const void* const* pairs, float* out) {
  const int64_t token = tokens[blockIdx.y];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= t.in) return;
  float v = element(t, t.codes + token * t.row_bytes, i);
  if (t.scales) {
    const int64_t group = t.group_rows == 0 ? 0 : token / t.group_rows;
    v *= t.scales[group * t.row_scales + (t.group_cols == 0 ? 0 : i / t.group_cols)];
  }
  const int slot = slots ? slots[blockIdx.y] : -1;
  const auto* pair = slot < 0 ? nullptr : static_cast<const DevicePair*>(pairs[slot]);
  if (pair && pair->rank > 0) {
    const int width = (t.in + kTileCols - 1) / kTileCols * kTileCols;
    float sum = 0;
    for (int r = 0; r < pair->rank; ++r) {
      sum = fmaf(__uint_as_float(uint32_t{pair->b[token * pair->rank + r]} << 16),
                 __uint_as_float(uint32_t{pair->a[int64_t{r} * width + i]} << 16), sum);
    }
    v += pair->scale * sum;
  }
  out[int64_t{blockIdx.y} * t.in + i] = v;
}

}  // namespace

void run_product(Context& context, Codec codec, const Product& product) {
  const WorkMap& map = product.map;
  const int matrices = map.counts ? std::min(map.experts, map.entries) : 1;
  const int average = (map.entries + matrices - 1) / matrices;
  const bool large = is_large(context, product.matrix);
  if (average <= (map.counts ? kSmallExpert : large ? kSmallLarge : kSmallDense)) {
    run_small_product(context, codec, product, average);
  } else {
    run_tile_product(context, codec, product);
  }
  check_launch("a product with weights");
}

bool run_blas_product(Context& context, const Product& product, bool biased) {
  const Matrix& m = product.matrix;
  const int width = m.k_tiles * kTileCols, rows = product.map.entries;
  LK_CHECK(product.operand.stride == width);
  LK_CHECK(product.epilogue.target == Target::kStore || product.epilogue.target == Target::kAdd);
  return context.blas().run({.weights = m.records,
                             .x = product.operand.x,
                             .bias = biased ? m.bias : nullptr,
                             .out = product.epilogue.out,
                             .stride = product.epilogue.stride,
                             .out_rows = m.out,
                             .width = width,
                             .rows = rows,
                             .add = product.epilogue.target == Target::kAdd});
}

void run_linear(Context& context, const Batch& batch, const Linear& linear,
                const LinearCall& call) {
  if (call.rows == 0) return;
  const PackedWeights& weights = packed(linear);
  const int in = weights.matrix.in, parts = weights.matrix.parts;
  const int width = weights.matrix.k_tiles * kTileCols;
  LK_CHECK(parts == 1 || call.type == InputType::kF32);
  Product product{.matrix = weights.matrix};
  product.map.entries = call.rows;
  product.operand.stride = width;
  product.operand.x = static_cast<const __nv_bfloat16*>(call.x);
  if (call.type == InputType::kF32 || in != width) {
    auto* x = context.scratch<__nv_bfloat16>(Scratch::kExpertIn, size_t(batch.tokens) * width);
    product.operand.x = x;
    if (call.type == InputType::kF32) {
      run_convert(context, {.x = static_cast<const float*>(call.x),
                            .to = x,
                            .rows = batch.tokens,
                            .in = in,
                            .width = width / parts,
                            .parts = parts});
    } else {
      pad_rows<<<context.multiprocessors(), 256, 0, context.stream()>>>(
          static_cast<const __nv_bfloat16*>(call.x), x, batch.tokens, in, width);
      check_launch("padding rows");
    }
  }
  run_shrink(context, batch, linear, product);
  product.epilogue = {.target = call.add ? Target::kAdd : Target::kStore,
                      .out = call.out,
                      .stride = call.out_stride};
  const int small = is_large(context, product.matrix) ? kSmallBesideBlasLarge : kSmallBesideBlas;
  if (weights.codec == Codec::kBf16Rows && call.rows > small &&
      run_blas_product(context, product, weights.biased)) {
    run_expand(context, product);
  } else {
    run_product(context, weights.codec, product);
  }
}

void run_embedding(Context& context, const Batch& batch, const EmbedArgs& args) {
  if (batch.tokens == 0) return;
  const Table& table = packed(args.embedding).table;
  const bool adapted = batch.adapters && args.embedding.device_lora &&
                       std::any_of(args.embedding.lora.begin(), args.embedding.lora.end(),
                                   [](const LoraWeights* pairs) { return pairs != nullptr; });
  const dim3 grid((table.in + 255) / 256, batch.tokens);
  embed<<<grid, 256, 0, context.stream()>>>(table, batch.token_ids,
                                            adapted ? batch.adapter : nullptr,
                                            args.embedding.device_lora, args.residual);
  check_launch("embedding");
}

}  // namespace lk::cuda
