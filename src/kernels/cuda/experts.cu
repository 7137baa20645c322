// Expert layers: sort the entries, up with its activation, down with its weight, sum. And the
// expert that every token takes.
#include <algorithm>

#include "kernels/cuda/linears.h"
#include "kernels/cuda/product.h"

namespace lk::cuda {
namespace {

// residual[t] += y[t * k], then y[t * k + 1] ...: in order of the slots. One of two vectors wide.
template <typename Vector>
__global__ void combine(const float* y, int64_t stride, const int32_t* expert, int top_k, int width,
                        float* residual) {
  constexpr int kWide = sizeof(Vector) / sizeof(float);
  const int64_t t = blockIdx.y;
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * kWide;
  if (i >= width) return;
  auto& to = *reinterpret_cast<Vector*>(residual + t * width + i);
  Vector sum = to;
  for (int s = 0; s < top_k; ++s) {
    const int64_t pair = t * top_k + s;
    if (expert[pair] < 0) continue;
    const Vector v = *reinterpret_cast<const Vector*>(y + pair * stride + i);
    if constexpr (kWide == 4) {
      sum.x += v.x;
      sum.y += v.y;
      sum.z += v.z;
      sum.w += v.w;
    } else {
      sum += v;
    }
  }
  to = sum;
}

// The two linears of a layer share what stands between them.
struct Middle {
  __nv_bfloat16* g;
  int64_t width;  // of a row: the down linear's padded input
  int first;      // columns that no row of the up linear writes
};
Middle middle_of(Context& context, const PackedWeights& up, const PackedWeights& down,
                 int64_t entries) {
  const int64_t width = int64_t{down.matrix.k_tiles} * kTileCols;
  return {context.scratch<__nv_bfloat16>(Scratch::kExpertMid, entries * width), width,
          up.matrix.gated ? up.matrix.row_tiles * 8 : up.matrix.out};
}

}  // namespace

void run_experts(Context& context, const Batch& batch, const ExpertArgs& args) {
  if (batch.tokens == 0) return;
  const PackedWeights &up = packed(args.up), &down = packed(args.down);
  const int pairs = batch.tokens * args.top_k;
  const int width = up.matrix.k_tiles * kTileCols;
  const Middle middle = middle_of(context, up, down, pairs);
  auto* x = context.scratch<__nv_bfloat16>(Scratch::kExpertIn, size_t(batch.tokens) * width);
  const WorkMap map = run_work_map(context, args.expert, pairs, args.experts,
                                   {args.x, x, batch.tokens, up.matrix.in, width, middle.g, pairs,
                                    static_cast<int>(middle.width), middle.first});

  Product first{.matrix = up.matrix, .map = map};
  first.operand = {x, width, args.top_k, args.top_k, nullptr};
  run_shrink(context, batch, args.up, first);
  first.epilogue = {.target = Target::kActivate,
                    .stride = middle.width,
                    .mid = middle.g,
                    .activation = args.activation,
                    .alpha = args.alpha,
                    .limit = args.limit};
  run_product(context, up.codec, first);

  const int64_t stride = int64_t{down.matrix.row_tiles} * kTileRows;
  auto* y = context.scratch<float>(Scratch::kExpertOut, pairs * stride);
  Product second{.matrix = down.matrix, .map = map};
  second.operand = {middle.g, middle.width, 1, args.top_k, nullptr};
  run_shrink(context, batch, args.down, second);
  second.epilogue = {
      .target = Target::kWeighted, .out = y, .stride = stride, .factor = args.weight};
  run_product(context, down.codec, second);

  const int hidden = down.matrix.out;
  if (hidden % 4 == 0) {
    const dim3 grid((hidden / 4 + 127) / 128, batch.tokens);
    combine<float4><<<grid, 128, 0, context.stream()>>>(y, stride, args.expert, args.top_k, hidden,
                                                        args.residual);
  } else {
    const dim3 grid((hidden + 127) / 128, batch.tokens);
    combine<float><<<grid, 128, 0, context.stream()>>>(y, stride, args.expert, args.top_k, hidden,
                                                       args.residual);
  }
  check_launch("the experts' sum");
}

void run_shared_expert(Context& context, const Batch& batch, const SharedExpertArgs& args) {
  if (batch.tokens == 0) return;
  const PackedWeights &up = packed(args.up), &down = packed(args.down);
  const int width = up.matrix.k_tiles * kTileCols;
  const Middle middle = middle_of(context, up, down, batch.tokens);
  auto* x = context.scratch<__nv_bfloat16>(Scratch::kExpertIn, size_t(batch.tokens) * width);
  run_convert(context, {args.x, x, batch.tokens, up.matrix.in, width, middle.g, batch.tokens,
                        static_cast<int>(middle.width), middle.first});
  float* gate = nullptr;
  if (args.gate.weights) {
    gate = context.scratch<float>(Scratch::kSharedGate, batch.tokens);
    Product product{.matrix = packed(args.gate).matrix};
    product.map.entries = batch.tokens;
    product.operand = {x, width, 1, 1, nullptr};
    run_shrink(context, batch, args.gate, product);
    product.epilogue = {.target = Target::kStore, .out = gate, .stride = 1};
    run_product(context, packed(args.gate).codec, product);
  }
  Product first{.matrix = up.matrix};
  first.map.entries = batch.tokens;
  first.operand = {x, width, 1, 1, nullptr};
  run_shrink(context, batch, args.up, first);
  first.epilogue = {.target = Target::kActivate,
                    .stride = middle.width,
                    .mid = middle.g,
                    .activation = args.activation};
  run_product(context, up.codec, first);

  Product second{.matrix = down.matrix};
  second.map.entries = batch.tokens;
  second.operand = {middle.g, middle.width, 1, 1, nullptr};
  run_shrink(context, batch, args.down, second);
  second.epilogue = {.target = gate ? Target::kGatedAdd : Target::kAdd,
                     .out = args.residual,
                     .stride = down.matrix.out,
                     .factor = gate};
  run_product(context, down.codec, second);
}

}  // namespace lk::cuda
