#include "kernels/cpu/cpu_kernels.h"

#include <algorithm>

#include "base/check.h"
#include "base/numeric.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/recurrent.h"
#include "kernels/reference/linear.h"
#include "kernels/reference/primitives.h"

namespace lk {
namespace {

using namespace cpu;

// y += scale * B (A x), in the order of the plain loops.
void add_lora_plainly(const Linear& linear, int slot, int expert, const float* x, float* y) {
  const PackedLora::Pair* pair = lora_pair(linear, slot, expert);
  if (!pair) return;
  const LinearSpec& spec = *reference::weights_of(linear).linear.spec;
  std::vector<double> z(pair->rank, 0.0);
  for (int r = 0; r < pair->rank; ++r) {
    for (int64_t i = 0; i < spec.in; ++i)
      z[r] += double{x[i]} * bf16_to_f32(pair->a[r * spec.in + i]);
    z[r] *= pair->scale;
  }
  for (int64_t group = 0; group < row_group_count(spec.out, spec.row_order); ++group) {
    for (int lane = 0; lane < kRows; ++lane) {
      const int64_t row = logical_row(group, lane, spec.out, spec.row_order);
      if (row < 0) continue;
      double sum = 0;
      for (int r = 0; r < pair->rank; ++r)
        sum += z[r] * bf16_to_f32(pair->b[(group * pair->rank + r) * kRows + lane]);
      y[row] = static_cast<float>(y[row] + sum);
    }
  }
}

class CpuKernels : public Kernels {
 public:
  CpuKernels(const CpuIsa& isa, int threads)
      : isa_(isa), pool_(threads), plan_(isa, pool_), recurrent_(isa, pool_, plan_) {}

  std::string_view name() const override { return isa_.name; }
  int threads() const override { return pool_.threads(); }
  bool keeps_views(const ProductForm& form) const override { return form.plain_loops; }

  std::unique_ptr<Weights> pack(const StoredLinear& linear, const ProductForm& form,
                                bool drop) override {
    if (!form.plain_loops) return pack_weights(linear, form, drop, pool_);
    auto weights = std::make_unique<reference::ReferenceWeights>();
    weights->linear = linear;
    weights->form = form;
    return weights;
  }
  std::unique_ptr<LoraWeights> pack_lora(const LinearSpec& spec,
                                         std::span<const LoraSource> experts) const override {
    return pack_lora_pairs(spec, experts);
  }

  void embed(const Batch& batch, const EmbedArgs& args) override {
    const PackedWeights& table = packed(args.embedding);
    pool_.run(batch.tokens, 8, [&](int64_t t, int) {
      float* out = args.residual + t * table.in;
      unpack_row(table, batch.token_ids[t], out);
      const PackedLora::Pair* pair = lora_pair(args.embedding, batch.adapter[t], 0);
      if (!pair) return;
      const int64_t token = batch.token_ids[t];
      const uint16_t* b = pair->b + (token / kRows * pair->rank) * kRows + token % kRows;
      for (int r = 0; r < pair->rank; ++r) {
        const float z = pair->scale * bf16_to_f32(b[int64_t{r} * kRows]);
        for (int64_t i = 0; i < table.in; ++i) out[i] += z * bf16_to_f32(pair->a[r * table.in + i]);
      }
    });
  }

  void qkv(const Batch& batch, const QkvArgs& args) override {
    const int64_t hidden = packed(args.query).in;
    const int64_t q_dim = int64_t{args.heads} * args.head_dim,
                  kv_dim = int64_t{args.kv_heads} * args.head_dim;
    float* x = floats(x_, batch.tokens * hidden);
    float* k = floats(k_, batch.tokens * kv_dim);
    float* v = floats(v_, batch.tokens * kv_dim);
    norm_rows(isa_, pool_, args.residual, args.norm, nullptr, batch.tokens, hidden, x);
    plan_.clear();
    add_dense(plan_, batch, args.query, x);
    add_dense(plan_, batch, args.key, x);
    add_dense(plan_, batch, args.value, x);
    float* const out[3] = {args.q, k, v};
    const int64_t width[3] = {q_dim, kv_dim, kv_dim};
    plan_.run([&](int job, int row, int64_t first, const float* values, int count) {
      if (job == 0 && args.gate)
        split_gate(args, row, first, values, count);
      else
        store_rows(row, first, values, count, width[job], out[job]);
    });
    const int half = args.rotary / 2;
    pool_.run(batch.tokens, 8, [&](int64_t t, int) {
      const float* cos = args.rope_cos + t * half;
      const float* sin = args.rope_sin + t * half;
      norm_heads(args.query_norm, args, q_dim, args.q + t * q_dim);
      norm_heads(args.key_norm, args, kv_dim, k + t * kv_dim);
      if (args.clip > 0) {
        clamp(args.clip, q_dim, args.q + t * q_dim);
        clamp(args.clip, kv_dim, k + t * kv_dim);
        clamp(args.clip, kv_dim, v + t * kv_dim);
      }
      isa_.rope(args.q + t * q_dim, args.heads, args.head_dim, args.rotary, cos, sin);
      isa_.rope(k + t * kv_dim, args.kv_heads, args.head_dim, args.rotary, cos, sin);
      const int64_t slot = batch.kv[args.kv.group].slot_mapping[t];
      if (args.kv.type == KvType::kF32) {
        write_kv(args, slot, k + t * kv_dim, v + t * kv_dim, static_cast<float*>(args.kv.keys),
                 static_cast<float*>(args.kv.values), [](float value) { return value; });
      } else {
        write_kv(args, slot, k + t * kv_dim, v + t * kv_dim, static_cast<uint16_t*>(args.kv.keys),
                 static_cast<uint16_t*>(args.kv.values), f32_to_bf16);
      }
    });
  }

  void attention(const Batch& batch, const AttentionArgs& args) override {
    const int group = args.heads / args.kv_heads;
    int longest = 0;
    for (int t = 0; t < batch.tokens; ++t) longest = std::max(longest, keys_of(batch, args, t));
    const int64_t score_floats = int64_t{group} * (longest + 2 * kKvBlockTokens);
    float* scores = floats(scores_, score_floats * pool_.threads());
    const KvIndex& index = batch.kv[args.kv.group];
    pool_.run(int64_t{batch.tokens} * args.kv_heads, 1, [&](int64_t i, int thread) {
      // The last token of a prompt has the most keys: starting there evens out the end of the loop.
      const int64_t t = batch.tokens - 1 - i / args.kv_heads;
      const int64_t kv_head = i % args.kv_heads;
      const int64_t at = (t * args.heads + kv_head * group) * args.head_dim;
      AttentionItem item;
      item.q = args.q + at;
      item.keys = args.kv.keys;
      item.values = args.kv.values;
      item.type = args.kv.type;
      item.blocks = index.block_table + int64_t{batch.sequence[t]} * index.max_blocks;
      item.block_stride = int64_t{args.kv_heads} * args.head_dim * kKvBlockTokens;
      item.head_offset = kv_head * args.head_dim * kKvBlockTokens;
      item.heads = group;
      item.head_dim = args.head_dim;
      item.last = batch.positions[t];
      item.first = item.last + 1 - keys_of(batch, args, static_cast<int>(t));
      item.scale = args.scale;
      item.sinks = args.sinks ? args.sinks + kv_head * group : nullptr;
      item.scores = scores + thread * score_floats;
      item.out = args.out + at;
      isa_.attention(item);
      if (args.gate) isa_.gate_sigmoid(args.gate + at, int64_t{group} * args.head_dim, item.out);
    });
  }

  void delta_net(const Batch& batch, const DeltaNetArgs& args) override {
    recurrent_.delta_net(batch, args);
  }

  void mamba(const Batch& batch, const MambaArgs& args) override { recurrent_.mamba(batch, args); }

  void project(const Batch& batch, const ProjectArgs& args) override {
    const int64_t width = packed(args.linear).out;
    plan_.clear();
    add_dense(plan_, batch, args.linear, args.x);
    plan_.run([&](int, int row, int64_t first, const float* values, int count) {
      store_rows(row, first, values, count, width, args.out);
    });
  }

  void output(const Batch& batch, const OutputArgs& args) override {
    const int64_t hidden = packed(args.linear).out;
    plan_.clear();
    add_dense(plan_, batch, args.linear, args.x);
    plan_.run([&](int, int row, int64_t first, const float* values, int count) {
      float* out = args.residual + row * hidden + first;
      const int64_t n = std::min<int64_t>(count, hidden - first);
      for (int64_t i = 0; i < n; ++i) out[i] += values[i];
    });
  }

  void route(const Batch& batch, const RouteArgs& args) override {
    const int64_t hidden = packed(args.router).in;
    float* logits = floats(logits_, int64_t{batch.tokens} * args.experts);
    norm_rows(isa_, pool_, args.residual, args.norm, nullptr, batch.tokens, hidden, args.x);
    plan_.clear();
    add_dense(plan_, batch, args.router, args.x);
    plan_.run([&](int, int row, int64_t first, const float* values, int count) {
      store_rows(row, first, values, count, args.experts, logits);
    });
    pool_.run(batch.tokens, 8, [&](int64_t t, int) {
      const int64_t at = t * args.top_k;
      reference::choose_experts(args, logits + t * args.experts,
                                args.forced ? args.forced + at : nullptr, args.expert + at,
                                args.weight + at);
    });
  }

  void experts(const Batch& batch, const ExpertArgs& args) override {
    if (args.up.weights->form.plain_loops) {
      return reference::experts(pool_, batch, args, add_lora_plainly);
    }
    const PackedWeights& up = packed(args.up);
    const PackedWeights& down = packed(args.down);
    LK_CHECK(up.gated == is_gated(args.activation));
    const int64_t hidden = down.out, inner = args.intermediate;
    const int64_t pairs = int64_t{batch.tokens} * args.top_k;
    float* g = floats(g_, pairs * inner);
    float* y = floats(y_, pairs * hidden);
    sort_pairs(args, pairs);

    auto each_expert = [&](const Linear& linear, const float* x, int64_t width, bool by_token) {
      plan_.clear();
      for (int e = 0; e < args.experts; ++e) {
        if (first_[e] == first_[e + 1]) continue;
        GemmJob& job = plan_.add(&packed(linear), e);
        for (int64_t i = first_[e]; i < first_[e + 1]; ++i) {
          const int64_t pair = sorted_[i], token = pair / args.top_k;
          job.x.push_back(x + (by_token ? token : pair) * width);
          job.lora.push_back(lora_pair(linear, batch.adapter[token], e));
        }
      }
    };
    job_first_.clear();
    for (int e = 0; e < args.experts; ++e) {
      if (first_[e] != first_[e + 1]) job_first_.push_back(first_[e]);
    }
    each_expert(args.up, args.x, hidden, true);
    plan_.run([&](int job, int row, int64_t first, const float* values, int count) {
      activate(args.activation, args.alpha, args.limit, first, values, count, inner,
               g + sorted_[job_first_[job] + row] * inner);
    });
    each_expert(args.down, g, inner, false);
    plan_.run([&](int job, int row, int64_t first, const float* values, int count) {
      const int64_t pair = sorted_[job_first_[job] + row];
      const float weight = args.weight[pair];
      float* out = y + pair * hidden + first;
      const int64_t n = std::min<int64_t>(count, hidden - first);
      for (int64_t i = 0; i < n; ++i) out[i] = weight * values[i];
    });
    // Slots are summed best expert first, whichever thread computed them when.
    pool_.run(batch.tokens, 4, [&](int64_t t, int) {
      float* out = args.residual + t * hidden;
      for (int slot = 0; slot < args.top_k; ++slot) {
        const float* part = y + (t * args.top_k + slot) * hidden;
        for (int64_t i = 0; i < hidden; ++i) out[i] += part[i];
      }
    });
  }

  void shared_expert(const Batch& batch, const SharedExpertArgs& args) override {
    LK_CHECK(packed(args.up).gated == is_gated(args.activation));
    const int64_t hidden = packed(args.down).out, inner = args.intermediate;
    float* g = floats(g_, batch.tokens * inner);
    float* factor = floats(logits_, batch.tokens);
    std::fill_n(factor, batch.tokens, 1.0f);
    plan_.clear();
    add_dense(plan_, batch, args.up, args.x);
    if (args.gate.weights) add_dense(plan_, batch, args.gate, args.x);
    plan_.run([&](int job, int row, int64_t first, const float* values, int count) {
      if (job == 1)
        factor[row] = reference::sigmoid(values[0]);
      else
        activate(args.activation, 0, 0, first, values, count, inner, g + row * inner);
    });
    plan_.clear();
    add_dense(plan_, batch, args.down, g);
    plan_.run([&](int, int row, int64_t first, const float* values, int count) {
      float* out = args.residual + row * hidden + first;
      const int64_t n = std::min<int64_t>(count, hidden - first);
      for (int64_t i = 0; i < n; ++i) out[i] += factor[row] * values[i];
    });
  }

  void head(const Batch& batch, const HeadArgs& args) override {
    const PackedWeights& weights = packed(args.head);
    LK_CHECK(!weights.row_major);
    float* x = floats(x_, batch.logit_count * weights.in);
    norm_rows(isa_, pool_, args.residual, args.norm, batch.logit_rows, batch.logit_count,
              weights.in, x);
    plan_.clear();
    GemmJob& job = plan_.add(&weights, 0);
    for (int r = 0; r < batch.logit_count; ++r) {
      job.x.push_back(x + r * weights.in);
      job.lora.push_back(lora_pair(args.head, batch.adapter[batch.logit_rows[r]], 0));
    }
    plan_.run([&](int, int row, int64_t first, const float* values, int count) {
      store_rows(row, first, values, count, weights.out, args.logits);
    });
  }

 private:
  // A block of rows of an expert's first linear, from packed row `first` on, to its units of g.
  void activate(Activation activation, float alpha, float limit, int64_t first, const float* values,
                int64_t count, int64_t inner, float* g) const {
    if (is_gated(activation)) first /= 2, count /= 2;
    const int64_t units = std::min(count, inner - first);
    if (activation == Activation::kRelu2)
      isa_.relu2(values, units, g + first);
    else if (activation == Activation::kSwiGlu)
      isa_.swiglu(values, units, g + first);
    else
      isa_.clamped_swiglu(values, units, alpha, limit, g + first);
  }

  // A block of rows of a gated query linear: of each head its q, then its gate.
  static void split_gate(const QkvArgs& args, int row, int64_t first, const float* values,
                         int count) {
    const int64_t n = args.head_dim, end = std::min(first + count, 2 * n * args.heads);
    for (int64_t i = first; i < end;) {
      const int64_t part = i / n, until = std::min(end, (part + 1) * n);
      float* out = part % 2 ? args.gate : args.q;
      std::memcpy(out + (row * int64_t{args.heads} + part / 2) * n + i % n, values + (i - first),
                  (until - i) * sizeof(float));
      i = until;
    }
  }

  void norm_heads(const Norm& norm, const QkvArgs& args, int64_t width, float* x) const {
    if (!norm.weight) return;
    const int64_t n = args.norm_whole ? width : args.head_dim;
    for (int64_t i = 0; i < width; i += n) isa_.rms_norm(x + i, norm.weight, norm.eps, n, x + i);
  }
  static void clamp(float clip, int64_t n, float* x) {
    for (int64_t i = 0; i < n; ++i) x[i] = std::clamp(x[i], -clip, clip);
  }

  static int keys_of(const Batch& batch, const AttentionArgs& args, int t) {
    const int all = batch.positions[t] + 1;
    return args.window > 0 ? std::min(all, args.window) : all;
  }

  // (token, slot) pairs by expert, tokens in order: sorted_[first_[e] .. first_[e + 1]).
  void sort_pairs(const ExpertArgs& args, int64_t pairs) {
    first_.assign(args.experts + 1, 0);
    for (int64_t p = 0; p < pairs; ++p) ++first_[args.expert[p] + 1];
    for (int e = 0; e < args.experts; ++e) first_[e + 1] += first_[e];
    next_.assign(first_.begin(), first_.end() - 1);
    sorted_.resize(pairs);
    for (int64_t p = 0; p < pairs; ++p) sorted_[next_[args.expert[p]]++] = p;
  }

  template <typename T, typename Convert>
  static void write_kv(const QkvArgs& args, int64_t slot, const float* k, const float* v, T* keys,
                       T* values, Convert convert) {
    const int64_t block = slot / kKvBlockTokens, offset = slot % kKvBlockTokens;
    for (int h = 0; h < args.kv_heads; ++h) {
      const int64_t base = (block * args.kv_heads + h) * args.head_dim * kKvBlockTokens;
      for (int d = 0; d < args.head_dim; ++d) {
        keys[base + int64_t{d} * kKvBlockTokens + offset] = convert(k[h * args.head_dim + d]);
        values[base + offset * args.head_dim + d] = convert(v[h * args.head_dim + d]);
      }
    }
  }

  const CpuIsa& isa_;
  ThreadPool pool_;
  GemmPlan plan_;
  RecurrentStages recurrent_;
  AlignedBuffer x_, k_, v_, scores_, logits_, g_, y_;
  std::vector<int64_t> first_, next_, sorted_, job_first_;
};

}  // namespace

std::unique_ptr<Kernels> make_cpu_kernels(const CpuIsa& isa, int threads) {
  return std::make_unique<CpuKernels>(isa, threads);
}

}  // namespace lk
