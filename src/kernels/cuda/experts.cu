// Expert layers: sort the entries, up with its activation, down with its weight, sum. And the
// expert that every token takes.
#include <algorithm>

#include "base/check.h"
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
template <typename T>
struct Middle {
  T* g;
  int64_t width;  // of a row: the down linear's padded input
  int first;      // columns that no row of the up linear writes
};
template <typename T>
Middle<T> middle_of(Context& context, const PackedWeights& up, const PackedWeights& down,
                    int64_t entries) {
  const int64_t width = int64_t{down.matrix.k_tiles} * kTileCols;
  return {context.scratch<T>(Scratch::kExpertMid, entries * width), width,
          up.matrix.gated ? up.matrix.row_tiles * 8 : up.matrix.out};
}

// Float32 rows of x to E4M3, for one linear: of each token (`divisor` 1), or of each entry where
// experts have scales of their own.
Quantize quantize_for(const Matrix& m, Codec codec, const float* x, int64_t stride, int rows,
                      int divisor, const int32_t* expert) {
  Quantize q{.x = x, .stride = stride, .in = m.in, .rows = rows, .rule = scale_of_codes(codec)};
  q.width = m.k_tiles * kTileCols;
  q.row_scales = q.rule.group == 0 ? 1 : (q.width + q.rule.group - 1) / q.rule.group;
  q.divisor = divisor;
  q.expert = expert;
  q.fixed = m.input_scale;
  return q;
}
size_t bytes_of(const Quantize& q) { return size_t(q.rows) * (q.width + q.row_scales * 4); }
void put_at(Quantize& q, uint8_t* memory) {
  q.codes = memory;
  q.scales = reinterpret_cast<float*>(memory + size_t(q.rows) * q.width);
}

Operand operand_of(const Quantize& q, int x_divisor, int top_k) {
  return {.stride = q.width,
          .x_divisor = x_divisor,
          .token_divisor = top_k,
          .codes = q.codes,
          .scales = q.scales,
          .row_scales = q.row_scales};
}

// Activations as bfloat16: x, and g between the two linears.
void products_of_rows(Context& context, const Batch& batch, const ExpertArgs& args, Product& first,
                      Product& second) {
  const PackedWeights &up = packed(args.up), &down = packed(args.down);
  const int pairs = batch.tokens * args.top_k;
  const int width = up.matrix.k_tiles * kTileCols;
  const auto middle = middle_of<__nv_bfloat16>(context, up, down, pairs);
  auto* x = context.scratch<__nv_bfloat16>(Scratch::kExpertIn, size_t(batch.tokens) * width);
  first.map = second.map =
      run_work_map(context, args.expert, pairs, args.experts,
                   Prepare{args.x, x, batch.tokens, up.matrix.in, width, middle.g, pairs,
                           static_cast<int>(middle.width), middle.first});

  first.operand = {x, width, args.top_k, args.top_k};
  run_shrink(context, batch, args.up, first);
  first.epilogue.mid = middle.g;
  first.epilogue.stride = middle.width;
  run_product(context, up.codec, first);

  second.operand = {middle.g, middle.width, 1, args.top_k};
  run_shrink(context, batch, args.down, second);
  run_product(context, down.codec, second);
}

// Activations as E4M3 where they meet weights, as float32 where LoRA reads them: what is rounded to
// so few bits must be right in all the others, or values near a tie fall on the other side.
void products_of_codes(Context& context, const Batch& batch, const ExpertArgs& args, Product& first,
                       Product& second) {
  const PackedWeights &up = packed(args.up), &down = packed(args.down);
  const int pairs = batch.tokens * args.top_k, top_k = args.top_k;
  const auto middle = middle_of<float>(context, up, down, pairs);
  const bool own_scales = up.matrix.input_scale != nullptr;
  Quantize x =
      quantize_for(up.matrix, up.codec, args.x, up.matrix.in, own_scales ? pairs : batch.tokens,
                   own_scales ? top_k : 1, own_scales ? args.expert : nullptr);
  Quantize g = quantize_for(down.matrix, down.codec, middle.g, middle.width, pairs, 1, args.expert);
  // The codes of g take the place of those of x, which are read by then.
  auto* codes = context.scratch<uint8_t>(Scratch::kExpertIn, std::max(bytes_of(x), bytes_of(g)));
  put_at(x, codes);
  put_at(g, codes);
  first.map = second.map = run_work_map(context, args.expert, pairs, args.experts, x);

  first.operand = {.stride = x.stride, .x_divisor = top_k, .token_divisor = top_k, .full = args.x};
  run_shrink(context, batch, args.up, first);
  first.operand = operand_of(x, own_scales ? 1 : top_k, top_k);
  first.epilogue.mid = middle.g;
  first.epilogue.stride = middle.width;
  run_product(context, up.codec, first);

  run_quantize(context, g);
  second.operand = {.stride = g.stride, .token_divisor = top_k, .full = middle.g};
  run_shrink(context, batch, args.down, second);
  second.operand = operand_of(g, 1, top_k);
  run_product(context, down.codec, second);
}

}  // namespace

void run_experts(Context& context, const Batch& batch, const ExpertArgs& args) {
  if (batch.tokens == 0) return;
  const PackedWeights &up = packed(args.up), &down = packed(args.down);
  const int pairs = batch.tokens * args.top_k;
  const int64_t stride = int64_t{down.matrix.row_tiles} * kTileRows;
  auto* y = context.scratch<float>(Scratch::kExpertOut, pairs * stride);
  Product first{.matrix = up.matrix}, second{.matrix = down.matrix};
  first.epilogue = {.target = Target::kActivate,
                    .activation = args.activation,
                    .alpha = args.alpha,
                    .limit = args.limit};
  second.epilogue = {
      .target = Target::kWeighted, .out = y, .stride = stride, .factor = args.weight};
  LK_CHECK(meets_codes(up.codec) == meets_codes(down.codec));
  if (meets_codes(up.codec)) {
    products_of_codes(context, batch, args, first, second);
  } else {
    products_of_rows(context, batch, args, first, second);
  }

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
  const auto middle = middle_of<__nv_bfloat16>(context, up, down, batch.tokens);
  auto* x = context.scratch<__nv_bfloat16>(Scratch::kExpertIn, size_t(batch.tokens) * width);
  run_convert(context, {args.x, x, batch.tokens, up.matrix.in, width, middle.g, batch.tokens,
                        static_cast<int>(middle.width), middle.first});
  float* gate = nullptr;
  if (args.gate.weights) {
    gate = context.scratch<float>(Scratch::kSharedGate, batch.tokens);
    Product product{.matrix = packed(args.gate).matrix};
    product.map.entries = batch.tokens;
    product.operand = {x, width, 1, 1};
    run_shrink(context, batch, args.gate, product);
    product.epilogue = {.target = Target::kStore, .out = gate, .stride = 1};
    run_product(context, packed(args.gate).codec, product);
  }
  Product first{.matrix = up.matrix};
  first.map.entries = batch.tokens;
  first.operand = {x, width, 1, 1};
  run_shrink(context, batch, args.up, first);
  first.epilogue = {.target = Target::kActivate,
                    .stride = middle.width,
                    .mid = middle.g,
                    .activation = args.activation};
  run_product(context, up.codec, first);

  Product second{.matrix = down.matrix};
  second.map.entries = batch.tokens;
  second.operand = {middle.g, middle.width, 1, 1};
  run_shrink(context, batch, args.down, second);
  second.epilogue = {.target = gate ? Target::kGatedAdd : Target::kAdd,
                     .out = args.residual,
                     .stride = down.matrix.out,
                     .factor = gate};
  run_product(context, down.codec, second);
}

}  // namespace lk::cuda
