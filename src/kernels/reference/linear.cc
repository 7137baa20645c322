#include "kernels/reference/linear.h"

#include <algorithm>
#include <vector>

#include "kernels/reference/primitives.h"
#include "kernels/reference/quantize.h"

namespace lk::reference {
namespace {

// One seam: h = W[expert] . x + bias from activations as the form leaves them, LoRA from x itself.
void expert_linear(const Linear& linear, const Batch& batch, int top_k,
                   const std::vector<int64_t>& pairs, int expert, const std::vector<float>& x,
                   const AddLora& add_lora, float* h) {
  const ReferenceWeights& weights = weights_of(linear);
  const StoredLinear& stored = weights.linear;
  const int64_t in = stored.spec->in, out = stored.spec->out;
  const auto count = static_cast<int64_t>(pairs.size());
  std::vector<float> codes = x;
  for (int64_t i = 0; i < count; ++i) {
    quantize_activations(weights.form.activations, *stored.format, input_scale(stored, expert), in,
                         &codes[i * in]);
  }
  matmul(weights, expert, codes.data(), count, h, nullptr);
  for (int64_t i = 0; i < count; ++i)
    add_lora(linear, batch.adapter[pairs[i] / top_k], expert, &x[i * in], h + i * out);
}

}  // namespace

size_t ReferenceWeights::bytes() const {
  size_t total = 0;
  for (const auto& parts : linear.experts) {
    for (const StoredMatrix& m : parts) total += static_cast<size_t>(m.rows * m.row_bytes);
  }
  return total;
}

const ReferenceWeights& weights_of(const Linear& linear) {
  return *static_cast<const ReferenceWeights*>(linear.weights);
}

void matmul(const ReferenceWeights& weights, int expert, const float* x, int64_t count, float* y,
            ThreadPool* pool) {
  const StoredLinear& linear = weights.linear;
  const int64_t in = linear.spec->in, out = linear.spec->out;
  // Transposed, so that the inner loop runs over independent sums; each keeps its order.
  std::vector<float> xt(in * count);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < in; ++c) xt[c * count + i] = x[i * in + c];
  }
  auto row_of = [&](int64_t o, int) {
    std::vector<float> w(in);
    std::vector<double> sum(count, 0.0);
    const StoredRow row = stored_row(linear, expert, o);
    decode_row(*linear.format, *row.matrix, row.row, w.data());
    if (weights.form.int8_weights) requantize_int8(in, w.data());
    for (int64_t c = 0; c < in; ++c) {
      for (int64_t i = 0; i < count; ++i) sum[i] += double{w[c]} * xt[c * count + i];
    }
    const float bias = stored_bias(linear, expert, o);
    for (int64_t i = 0; i < count; ++i) y[i * out + o] = static_cast<float>(sum[i] + bias);
  };
  if (pool) {
    pool->run(out, 16, row_of);
  } else {
    for (int64_t o = 0; o < out; ++o) row_of(o, 0);
  }
}

void experts(ThreadPool& pool, const Batch& batch, const ExpertArgs& args,
             const AddLora& add_lora) {
  const LinearSpec& up = *weights_of(args.up).linear.spec;
  const int64_t hidden = up.in, inner = args.intermediate;
  const int64_t pairs = int64_t{batch.tokens} * args.top_k;
  std::vector<std::vector<int64_t>> work(args.experts);  // (token, slot) pairs of each expert
  for (int64_t p = 0; p < pairs; ++p) work[args.expert[p]].push_back(p);
  std::vector<float> y(pairs * hidden);
  pool.run(args.experts, [&](int64_t e, int) {
    const int expert = static_cast<int>(e);
    const auto& mine = work[e];
    if (mine.empty()) return;
    const auto count = static_cast<int64_t>(mine.size());
    std::vector<float> x(count * hidden), h(count * up.out), g(count * inner), out(count * hidden);
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(args.x + mine[i] / args.top_k * hidden, hidden, &x[i * hidden]);
    expert_linear(args.up, batch, args.top_k, mine, expert, x, add_lora, h.data());
    for (int64_t i = 0; i < count; ++i) {
      activate(args.activation, args.alpha, args.limit, up.row_order, &h[i * up.out], inner,
               &g[i * inner]);
    }
    expert_linear(args.down, batch, args.top_k, mine, expert, g, add_lora, out.data());
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < hidden; ++j)
        y[mine[i] * hidden + j] = args.weight[mine[i]] * out[i * hidden + j];
    }
  });
  for (int64_t p = 0; p < pairs; ++p) {
    for (int64_t j = 0; j < hidden; ++j)
      args.residual[p / args.top_k * hidden + j] += y[p * hidden + j];
  }
}

}  // namespace lk::reference
