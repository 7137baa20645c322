#include "kernels/reference/reference_kernels.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/numeric.h"
#include "base/thread_pool.h"
#include "kernels/reference/linear.h"
#include "kernels/reference/primitives.h"
#include "kernels/reference/recurrent.h"

namespace lk {
namespace {

using namespace reference;

struct ReferenceLora : LoraWeights {
  struct Pair {
    int rank = 0;
    float scale = 0;
    std::vector<uint16_t> a, b;  // [rank, in], [out, rank]
  };
  std::vector<Pair> experts;
  size_t bytes() const override {
    size_t total = 0;
    for (const Pair& p : experts) total += 2 * (p.a.size() + p.b.size());
    return total;
  }
};

const StoredLinear& stored(const Linear& linear) { return weights_of(linear).linear; }

// delta += scale * B (A x) of one expert, x: [in], delta: [out].
void add_lora(const Linear& linear, int slot, int expert, const float* x, float* y) {
  if (slot < 0 || static_cast<size_t>(slot) >= linear.lora.size() || !linear.lora[slot]) return;
  const auto& pair = static_cast<const ReferenceLora*>(linear.lora[slot])->experts[expert];
  if (pair.rank == 0) return;
  const int64_t in = static_cast<int64_t>(pair.a.size()) / pair.rank;
  const int64_t out = static_cast<int64_t>(pair.b.size()) / pair.rank;
  std::vector<double> z(pair.rank, 0.0);
  for (int r = 0; r < pair.rank; ++r) {
    for (int64_t i = 0; i < in; ++i) z[r] += double{x[i]} * bf16_to_f32(pair.a[r * in + i]);
    z[r] *= pair.scale;
  }
  for (int64_t o = 0; o < out; ++o) {
    double sum = 0;
    for (int r = 0; r < pair.rank; ++r) sum += z[r] * bf16_to_f32(pair.b[o * pair.rank + r]);
    y[o] = static_cast<float>(y[o] + sum);
  }
}

class ReferenceKernels : public Kernels {
 public:
  explicit ReferenceKernels(int threads) : pool_(threads) {}

  std::string_view name() const override { return "reference"; }
  int threads() const override { return pool_.threads(); }
  bool keeps_views(const ProductForm&) const override { return true; }

  std::unique_ptr<Weights> pack(const StoredLinear& linear, const ProductForm& form,
                                bool) override {
    auto weights = std::make_unique<ReferenceWeights>();
    weights->linear = linear;
    weights->form = form;
    return weights;
  }

  std::unique_ptr<LoraWeights> pack_lora(const LinearSpec& spec,
                                         std::span<const LoraSource> experts) const override {
    auto lora = std::make_unique<ReferenceLora>();
    lora->experts.resize(experts.size());
    for (size_t e = 0; e < experts.size(); ++e) {
      const LoraSource& source = experts[e];
      if (source.rank == 0) continue;
      auto& pair = lora->experts[e];
      pair.rank = source.rank;
      pair.scale = source.scale;
      pair.a.assign(source.a, source.a + source.rank * spec.in);
      pair.b.assign(source.b, source.b + source.rank * spec.out);
    }
    return lora;
  }

  void embed(const Batch& batch, const EmbedArgs& args) override {
    const StoredLinear& linear = stored(args.embedding);
    const int64_t hidden = linear.spec->in;
    pool_.run(batch.tokens, [&](int64_t t, int) {
      const StoredRow row = stored_row(linear, 0, batch.token_ids[t]);
      float* out = args.residual + t * hidden;
      decode_row(*linear.format, *row.matrix, row.row, out);
      add_embedding_lora(args.embedding, batch.adapter[t], batch.token_ids[t], out);
    });
  }

  void qkv(const Batch& batch, const QkvArgs& args) override {
    const int64_t hidden = stored(args.query).spec->in;
    const int64_t q_dim = int64_t{args.heads} * args.head_dim,
                  kv_dim = int64_t{args.kv_heads} * args.head_dim;
    const std::vector<float> x = normed(batch, args.residual, args.norm, hidden);
    std::vector<float> k(batch.tokens * kv_dim), v(batch.tokens * kv_dim);
    if (args.gate)
      gated_query(batch, args, x.data());
    else
      dense(batch, args.query, x.data(), args.q);
    dense(batch, args.key, x.data(), k.data());
    dense(batch, args.value, x.data(), v.data());
    const int half = args.rotary / 2;
    for (int t = 0; t < batch.tokens; ++t) {
      const float* cos = args.rope_cos + int64_t{t} * half;
      const float* sin = args.rope_sin + int64_t{t} * half;
      norm_heads(args.query_norm, args.norm_whole, args.head_dim, q_dim, args.q + t * q_dim);
      norm_heads(args.key_norm, args.norm_whole, args.head_dim, kv_dim, &k[t * kv_dim]);
      if (args.clip > 0) {
        clamp(args.clip, q_dim, args.q + t * q_dim);
        clamp(args.clip, kv_dim, &k[t * kv_dim]);
        clamp(args.clip, kv_dim, &v[t * kv_dim]);
      }
      rope(args.q + t * q_dim, args.heads, args.head_dim, args.rotary, cos, sin);
      rope(&k[t * kv_dim], args.kv_heads, args.head_dim, args.rotary, cos, sin);
      const int64_t slot = batch.kv[args.kv.group].slot_mapping[t];
      const int64_t block = slot / kKvBlockTokens, offset = slot % kKvBlockTokens;
      for (int h = 0; h < args.kv_heads; ++h) {
        const int64_t base = (block * args.kv_heads + h) * args.head_dim * kKvBlockTokens;
        for (int d = 0; d < args.head_dim; ++d) {
          store(args.kv.keys, args.kv.type, base + d * kKvBlockTokens + offset,
                k[t * kv_dim + h * args.head_dim + d]);
          store(args.kv.values, args.kv.type, base + offset * args.head_dim + d,
                v[t * kv_dim + h * args.head_dim + d]);
        }
      }
    }
  }

  void attention(const Batch& batch, const AttentionArgs& args) override {
    const KvIndex& index = batch.kv[args.kv.group];
    pool_.run(int64_t{batch.tokens} * args.heads, [&](int64_t item, int) {
      const int64_t t = item / args.heads;
      const int h = static_cast<int>(item % args.heads);
      const int kv_head = h / (args.heads / args.kv_heads);
      const int position = batch.positions[t];
      const int first = args.window > 0 ? std::max(0, position - args.window + 1) : 0;
      const int64_t count = position - first + 1;
      std::vector<float> keys(count * args.head_dim), values(count * args.head_dim);
      for (int64_t j = 0; j < count; ++j) {
        const int64_t p = first + j;
        const int64_t block =
            index.block_table[int64_t{batch.sequence[t]} * index.max_blocks + p / kKvBlockTokens];
        LK_CHECK(block >= 0);
        const int64_t base = (block * args.kv_heads + kv_head) * args.head_dim * kKvBlockTokens;
        for (int d = 0; d < args.head_dim; ++d) {
          keys[j * args.head_dim + d] =
              load(args.kv.keys, args.kv.type, base + d * kKvBlockTokens + p % kKvBlockTokens);
          values[j * args.head_dim + d] =
              load(args.kv.values, args.kv.type, base + p % kKvBlockTokens * args.head_dim + d);
        }
      }
      const int64_t at = (t * args.heads + h) * args.head_dim;
      attend(args.q + at, keys, values, count, args.head_dim, args.scale,
             args.sinks ? args.sinks + h : nullptr, args.out + at);
      if (args.gate) gate_sigmoid(args.gate + at, args.head_dim, args.out + at);
    });
  }

  void delta_net(const Batch& batch, const DeltaNetArgs& args) override {
    const int64_t hidden = stored(args.qkv).spec->in;
    const std::vector<float> x = normed(batch, args.residual, args.norm, hidden);
    const std::vector<float> u = projected(batch, args.qkv, x), z = projected(batch, args.z, x),
                             a = projected(batch, args.a, x), b = projected(batch, args.b, x);
    reference::delta_net(pool_, batch, args, u.data(), z.data(), a.data(), b.data());
  }

  void mamba(const Batch& batch, const MambaArgs& args) override {
    const int64_t hidden = stored(args.in).spec->in;
    const std::vector<float> x = normed(batch, args.residual, args.norm, hidden);
    reference::mamba(pool_, batch, args, projected(batch, args.in, x).data());
  }

  void project(const Batch& batch, const ProjectArgs& args) override {
    dense(batch, args.linear, args.x, args.out);
  }

  void output(const Batch& batch, const OutputArgs& args) override {
    const int64_t hidden = stored(args.linear).spec->out;
    std::vector<float> y(batch.tokens * hidden);
    dense(batch, args.linear, args.x, y.data());
    for (size_t i = 0; i < y.size(); ++i) args.residual[i] += y[i];
  }

  void route(const Batch& batch, const RouteArgs& args) override {
    const int64_t hidden = stored(args.router).spec->in;
    for (int t = 0; t < batch.tokens; ++t) {
      rms_norm(args.residual + t * hidden, args.norm, hidden, args.x + t * hidden);
    }
    std::vector<float> logits(int64_t{batch.tokens} * args.experts);
    dense(batch, args.router, args.x, logits.data());
    for (int64_t t = 0; t < batch.tokens; ++t) {
      const int64_t at = t * args.top_k;
      choose_experts(args, &logits[t * args.experts], args.forced ? args.forced + at : nullptr,
                     args.expert + at, args.weight + at);
    }
  }

  void experts(const Batch& batch, const ExpertArgs& args) override {
    reference::experts(pool_, batch, args, add_lora);
  }

  void shared_expert(const Batch& batch, const SharedExpertArgs& args) override {
    const LinearSpec& up = *stored(args.up).spec;
    const int64_t hidden = up.in, inner = args.intermediate;
    std::vector<float> h(batch.tokens * up.out), g(batch.tokens * inner), y(batch.tokens * hidden),
        gate(batch.tokens);
    if (args.gate.weights) dense(batch, args.gate, args.x, gate.data());
    dense(batch, args.up, args.x, h.data());
    for (int64_t t = 0; t < batch.tokens; ++t)
      activate(args.activation, 0, 0, up.row_order, &h[t * up.out], inner, &g[t * inner]);
    dense(batch, args.down, g.data(), y.data());
    for (int64_t t = 0; t < batch.tokens; ++t) {
      const float factor = args.gate.weights ? sigmoid(gate[t]) : 1.0f;
      for (int64_t j = 0; j < hidden; ++j)
        args.residual[t * hidden + j] += factor * y[t * hidden + j];
    }
  }

  void head(const Batch& batch, const HeadArgs& args) override {
    const StoredLinear& linear = stored(args.head);
    const int64_t hidden = linear.spec->in, vocab = linear.spec->out;
    std::vector<float> x(batch.logit_count * hidden);
    for (int r = 0; r < batch.logit_count; ++r) {
      rms_norm(args.residual + batch.logit_rows[r] * hidden, args.norm, hidden, &x[r * hidden]);
    }
    matmul(weights_of(args.head), 0, x.data(), batch.logit_count, args.logits, &pool_);
    for (int r = 0; r < batch.logit_count; ++r) {
      add_lora(args.head, batch.adapter[batch.logit_rows[r]], 0, &x[r * hidden],
               args.logits + r * vocab);
    }
  }

 private:
  void dense(const Batch& batch, const Linear& linear, const float* x, float* y) {
    const StoredLinear& s = stored(linear);
    matmul(weights_of(linear), 0, x, batch.tokens, y, &pool_);
    for (int64_t t = 0; t < batch.tokens; ++t) {
      add_lora(linear, batch.adapter[t], 0, x + t * s.spec->in, y + t * s.spec->out);
    }
  }

  std::vector<float> projected(const Batch& batch, const Linear& linear,
                               const std::vector<float>& x) {
    std::vector<float> y(batch.tokens * stored(linear).spec->out);
    dense(batch, linear, x.data(), y.data());
    return y;
  }

  static std::vector<float> normed(const Batch& batch, const float* residual, const Norm& norm,
                                   int64_t hidden) {
    std::vector<float> x(batch.tokens * hidden);
    for (int t = 0; t < batch.tokens; ++t)
      rms_norm(residual + t * hidden, norm, hidden, &x[t * hidden]);
    return x;
  }

  // Splits each head's rows of the query linear into q and gate.
  void gated_query(const Batch& batch, const QkvArgs& args, const float* x) {
    const int64_t heads = int64_t{batch.tokens} * args.heads, n = args.head_dim;
    std::vector<float> both(heads * 2 * n);
    dense(batch, args.query, x, both.data());
    for (int64_t i = 0; i < heads; ++i) {
      std::copy_n(&both[i * 2 * n], n, args.q + i * n);
      std::copy_n(&both[i * 2 * n + n], n, args.gate + i * n);
    }
  }

  static void norm_heads(const Norm& norm, bool whole, int head_dim, int64_t width, float* x) {
    if (!norm.weight) return;
    const int64_t n = whole ? width : head_dim;
    for (int64_t i = 0; i < width; i += n) rms_norm(x + i, norm, n, x + i);
  }
  static void clamp(float clip, int64_t n, float* x) {
    for (int64_t i = 0; i < n; ++i) x[i] = std::clamp(x[i], -clip, clip);
  }

  // LoRA of a lookup: the token's row of scale * B A.
  static void add_embedding_lora(const Linear& linear, int slot, int32_t token, float* y) {
    if (slot < 0 || static_cast<size_t>(slot) >= linear.lora.size() || !linear.lora[slot]) return;
    const auto& pair = static_cast<const ReferenceLora*>(linear.lora[slot])->experts[0];
    const int64_t hidden = stored(linear).spec->in;
    for (int64_t i = 0; i < hidden && pair.rank > 0; ++i) {
      double sum = 0;
      for (int r = 0; r < pair.rank; ++r) {
        sum += double{bf16_to_f32(pair.b[int64_t{token} * pair.rank + r])} *
               bf16_to_f32(pair.a[r * hidden + i]);
      }
      y[i] = static_cast<float>(y[i] + pair.scale * sum);
    }
  }

  static void store(void* cache, KvType type, int64_t i, float value) {
    if (type == KvType::kF32)
      static_cast<float*>(cache)[i] = value;
    else
      static_cast<uint16_t*>(cache)[i] = f32_to_bf16(value);
  }
  static float load(const void* cache, KvType type, int64_t i) {
    if (type == KvType::kF32) return static_cast<const float*>(cache)[i];
    return bf16_to_f32(static_cast<const uint16_t*>(cache)[i]);
  }

  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<Kernels> make_reference_kernels(int threads) {
  return std::make_unique<ReferenceKernels>(threads);
}

}  // namespace lk
