// The CUDA stages that are no products with weights, against the reference's plain loops: fresh
// inputs, poisoned outputs and caches, padding behind the batch.
#include "kernels/cuda/stages.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernels/reference/primitives.h"
#include "kernels/reference/recurrent.h"
#include "kernels/reference/reference_kernels.h"
#include "tests/cuda/on_device.h"
#include "tests/kernels/op_case.h"

namespace lk::test {
namespace {

constexpr double kTolerance = 5e-3;

cuda::Context& context() {
  static cuda::Context shared(gpu());
  return shared;
}

float* poison_on(OnDevice& device, size_t count) { return device.put(poisoned(count)); }

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Tokens of one sequence in a step: `count` of them behind `before` others.
struct Span {
  int before, count;
};

// A step of several sequences whose blocks lie anywhere in a cache of `blocks`.
struct Step {
  std::unique_ptr<Owned> owned = std::make_unique<Owned>();
  int blocks = 0;
  std::vector<int32_t> state_slot;

  Step(Rng& rng, const std::vector<Span>& spans, int window) {
    Owned& o = *owned;
    int longest = 0;
    for (const Span& s : spans) longest = std::max(longest, s.before + s.count);
    const int max_blocks = (longest + kKvBlockTokens - 1) / kKvBlockTokens;
    for (const Span& s : spans) blocks += (s.before + s.count + 15) / 16;
    blocks += 3;
    std::vector<int32_t> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    for (int i = blocks - 1; i > 0; --i) std::swap(order[i], order[rng.below(i + 1)]);
    int next = 0;
    for (size_t s = 0; s < spans.size(); ++s) {
      const Span& span = spans[s];
      o.query_start.push_back(static_cast<int>(o.ids.size()));
      const int length = span.before + span.count;
      o.context_len.push_back(length);
      state_slot.push_back(static_cast<int>(spans.size()) - 1 - static_cast<int>(s));
      const int first = window > 0 ? std::max(0, span.before - window + 1) : 0;
      std::vector<int32_t> table(max_blocks, -1);
      for (int b = first / 16; b * 16 < length; ++b) table[b] = order[next++];
      for (int i = 0; i < span.count; ++i) {
        const int position = span.before + i;
        o.ids.push_back(0);
        o.positions.push_back(position);
        o.adapter.push_back(-1);
        o.sequence.push_back(static_cast<int>(s));
        o.slots.push_back(table[position / 16] * 16 + position % 16);
      }
      o.block_table.insert(o.block_table.end(), table.begin(), table.end());
    }
    o.query_start.push_back(static_cast<int>(o.ids.size()));
    o.finish(max_blocks);
    o.batch.state_slot = state_slot.data();
  }

  // The same with three tokens and two sequences of padding, on the GPU.
  Batch padded(OnDevice& device) const {
    Owned o = *owned;
    const int max_blocks = o.kv[0].max_blocks;
    std::vector<int32_t> slots = state_slot;
    for (int i = 0; i < 3; ++i) {
      o.ids.push_back(0), o.positions.push_back(0), o.adapter.push_back(-1);
      o.sequence.push_back(-1), o.slots.push_back(-1);
    }
    for (int i = 0; i < 2; ++i) {
      o.query_start.push_back(o.query_start.back());
      o.context_len.push_back(0), slots.push_back(-1);
      o.block_table.insert(o.block_table.end(), max_blocks, -1);
    }
    o.finish(max_blocks);
    o.batch.state_slot = slots.data();
    return device.put(o.batch);
  }
};

TEST(CudaStages, Norm) {
  Rng rng(51);
  for (const int width : {64, 2880, 4096, 6000, 37}) {
    OnDevice device;
    const int tokens = 9;
    const auto x = rng.floats(tokens * width), weight = rng.floats(width);
    const std::vector<int32_t> rows = {8, 0, 3, 3, 7};
    for (const bool weighted : {true, false}) {
      const Norm host{weight.data(), 1e-5f}, norm{weighted ? device.put(weight) : nullptr, 1e-5f};
      std::vector<float> expected(rows.size() * width);
      for (size_t i = 0; i < rows.size(); ++i) {
        if (weighted)
          reference::rms_norm(&x[rows[i] * width], host, width, &expected[i * width]);
        else
          std::copy_n(&x[rows[i] * width], width, &expected[i * width]);
      }
      float* out = poison_on(device, expected.size());
      auto* half = reinterpret_cast<__nv_bfloat16*>(poison_on(device, expected.size()));
      cuda::run_norm(context(), device.put(x), norm, static_cast<int>(rows.size()), width,
                     device.put(rows), half, out);
      EXPECT_LT(distance(OnDevice::get(out, expected.size()), expected), 1e-6) << width;
      const auto halves = OnDevice::get(reinterpret_cast<uint16_t*>(half), expected.size());
      std::vector<float> wide;
      for (uint16_t v : halves) wide.push_back(bf16_to_f32(v));
      EXPECT_LT(distance(wide, expected), kTolerance);
    }
  }
}

struct QkvCase {
  int heads, kv_heads, head_dim, rotary;
  bool norms, whole, gate;
  float clip;
  KvType type;
};
const QkvCase kQkvCases[] = {{8, 2, 64, 64, false, false, false, 0, KvType::kBF16},
                             {16, 2, 256, 64, true, false, true, 0, KvType::kBF16},
                             {12, 3, 128, 128, true, true, false, 0.7f, KvType::kF32},
                             {3, 1, 16, 0, true, false, true, 1.5f, KvType::kF32}};

TEST(CudaStages, FinishQkv) {
  Rng rng(52);
  for (const QkvCase& c : kQkvCases) {
    SCOPED_TRACE(c.head_dim);
    OnDevice device;
    const Step step(rng, {{0, 5}, {30, 1}, {14, 20}}, 0);
    const Batch host = step.owned->batch, batch = step.padded(device);
    const int64_t n = c.head_dim, q_dim = c.heads * n, kv_dim = c.kv_heads * n, half = c.rotary / 2;
    const int64_t tokens = batch.tokens, parts = c.gate ? 2 : 1;
    const auto query = rng.floats(tokens * q_dim * parts), key = rng.floats(tokens * kv_dim),
               value = rng.floats(tokens * kv_dim), cos = rng.floats(tokens * half),
               sin = rng.floats(tokens * half);
    const auto q_norm = rng.floats(c.whole ? q_dim : n), k_norm = rng.floats(c.whole ? kv_dim : n);
    const int64_t cache = step.blocks * 16 * kv_dim;
    std::vector<float> keys(cache), values(cache), q, gate;
    const auto finish = [&](const float* from, int64_t width, const std::vector<float>& norm,
                            const float* c0, const float* s0, bool turn) {
      std::vector<float> x(from, from + width);
      if (turn && c.norms) {
        const int64_t each = c.whole ? width : n;
        for (int64_t i = 0; i < width; i += each)
          reference::rms_norm(&x[i], {norm.data(), 1e-6f}, each, &x[i]);
      }
      for (float& v : x) v = c.clip > 0 ? std::clamp(v, -c.clip, c.clip) : v;
      if (turn) reference::rope(x.data(), static_cast<int>(width / n), n, c.rotary, c0, s0);
      return x;
    };
    for (int t = 0; t < host.tokens; ++t) {
      std::vector<float> row;
      for (int h = 0; h < c.heads; ++h) {
        const float* at = &query[(t * c.heads + h) * n * parts];
        row.insert(row.end(), at, at + n);
        if (c.gate) gate.insert(gate.end(), at + n, at + 2 * n);
      }
      const float *c0 = cos.data() + t * half, *s0 = sin.data() + t * half;
      row = finish(row.data(), q_dim, q_norm, c0, s0, true);
      q.insert(q.end(), row.begin(), row.end());
      const auto k = finish(&key[t * kv_dim], kv_dim, k_norm, c0, s0, true),
                 v = finish(&value[t * kv_dim], kv_dim, k_norm, c0, s0, false);
      const int64_t slot = host.kv[0].slot_mapping[t];
      for (int h = 0; h < c.kv_heads; ++h) {
        const int64_t base = (slot / 16 * c.kv_heads + h) * n * 16;
        for (int d = 0; d < n; ++d) {
          keys[base + d * 16 + slot % 16] = k[h * n + d];
          values[base + slot % 16 * n + d] = v[h * n + d];
        }
      }
    }
    const size_t width = c.type == KvType::kF32 ? 4 : 2;
    const std::vector<uint8_t> zeros(cache * width, 0);
    uint8_t *k_cache = device.put(zeros), *v_cache = device.put(zeros);
    QkvArgs args{};
    args.heads = c.heads, args.kv_heads = c.kv_heads, args.head_dim = c.head_dim;
    args.rotary = c.rotary, args.norm_whole = c.whole, args.clip = c.clip;
    args.rope_cos = device.put(cos), args.rope_sin = device.put(sin);
    args.q = poison_on(device, tokens * q_dim);
    if (c.gate) args.gate = poison_on(device, tokens * q_dim);
    args.kv = {k_cache, v_cache, c.type, 0};
    if (c.norms) args.query_norm = {device.put(q_norm), 1e-6f};
    if (c.norms) args.key_norm = {device.put(k_norm), 1e-6f};
    cuda::finish_qkv(context(), batch, args, device.put(query), device.put(key), device.put(value));
    EXPECT_LT(distance(OnDevice::get(args.q, q.size()), q), 1e-6);
    if (c.gate) EXPECT_EQ(OnDevice::get(args.gate, gate.size()), gate);
    const auto cached = [&](const uint8_t* at) {
      const auto bytes = OnDevice::get(at, cache * width);
      std::vector<float> all(cache);
      for (int64_t i = 0; i < cache; ++i) {
        uint16_t low;
        std::memcpy(&low, &bytes[i * width], 2);
        if (width == 2)
          all[i] = bf16_to_f32(low);
        else
          std::memcpy(&all[i], &bytes[i * width], 4);
      }
      return all;
    };
    const double limit = width == 4 ? 1e-6 : kTolerance;
    EXPECT_LT(distance(cached(k_cache), keys), limit);
    EXPECT_LT(distance(cached(v_cache), values), limit);
  }
}

struct AttentionCase {
  int heads, kv_heads, head_dim, window;
  bool sinks, gate;
  KvType type;
};
const AttentionCase kAttentionCases[] = {
    {64, 8, 64, 0, true, false, KvType::kBF16},   {64, 8, 64, 128, true, false, KvType::kBF16},
    {32, 2, 128, 0, false, false, KvType::kBF16}, {16, 2, 256, 0, false, true, KvType::kBF16},
    {12, 2, 128, 40, true, true, KvType::kBF16},  {20, 1, 64, 17, false, false, KvType::kBF16},
    {4, 4, 64, 0, false, true, KvType::kBF16},    {8, 2, 64, 128, true, true, KvType::kF32},
    {4, 2, 16, 0, true, false, KvType::kF32},     {6, 3, 32, 24, false, true, KvType::kBF16},
    {4, 1, 80, 0, false, false, KvType::kBF16},   {2, 1, 512, 0, true, false, KvType::kF32}};

TEST(CudaStages, Attention) {
  Rng rng(53);
  const auto reference = make_reference_kernels(2);
  const std::vector<std::vector<Span>> steps = {
      {{0, 7}, {300, 1}, {17, 70}, {0, 1}, {777, 1}, {31, 1}, {40, 3}, {15, 1}, {500, 131}},
      {{300, 1}, {0, 1}, {1029, 1}, {31, 1}, {255, 1}, {256, 1}},
      {{0, 200}}};
  for (const AttentionCase& c : kAttentionCases) {
    for (const auto& spans : steps) {
      SCOPED_TRACE(testing::Message()
                   << "dim " << c.head_dim << " heads " << c.heads << "/" << c.kv_heads
                   << " window " << c.window << " sequences " << spans.size());
      OnDevice device;
      const Step step(rng, spans, c.window);
      const Owned& o = *step.owned;
      const int64_t each = int64_t{c.kv_heads} * c.head_dim * 16, cache = step.blocks * each;
      // What no token of the batch's sequences has written is no number.
      std::vector<float> keys = poisoned(cache), values = poisoned(cache);
      for (size_t s = 0; s < spans.size(); ++s) {
        for (int p = 0; p < o.context_len[s]; ++p) {
          const int block = o.block_table[s * o.kv[0].max_blocks + p / 16];
          if (block < 0) continue;
          for (int h = 0; h < c.kv_heads; ++h) {
            for (int d = 0; d < c.head_dim; ++d) {
              const int64_t base = block * each + h * c.head_dim * 16;
              keys[base + d * 16 + p % 16] = bf16_to_f32(f32_to_bf16(rng.normal()));
              values[base + p % 16 * c.head_dim + d] = bf16_to_f32(f32_to_bf16(rng.normal()));
            }
          }
        }
      }
      const auto narrow = [](const std::vector<float>& wide) {
        std::vector<uint16_t> all;
        for (float v : wide) all.push_back(f32_to_bf16(v));
        return all;
      };
      const int64_t width = int64_t{c.heads} * c.head_dim, count = o.batch.tokens * width;
      const Batch batch = step.padded(device);
      const auto q = rng.floats(batch.tokens * width, 1.5f), sinks = rng.floats(c.heads, 2),
                 gate = rng.floats(batch.tokens * width);
      std::vector<float> expected(count);
      AttentionArgs args{.q = q.data(),
                         .kv = {keys.data(), values.data(), KvType::kF32, 0},
                         .heads = c.heads,
                         .kv_heads = c.kv_heads,
                         .head_dim = c.head_dim,
                         .window = c.window,
                         .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                         .sinks = c.sinks ? sinks.data() : nullptr,
                         .out = expected.data(),
                         .gate = c.gate ? gate.data() : nullptr};
      reference->attention(o.batch, args);
      args.q = device.put(q);
      args.sinks = c.sinks ? device.put(sinks) : nullptr;
      args.gate = c.gate ? device.put(gate) : nullptr;
      const bool wide = c.type == KvType::kF32;
      args.kv.type = c.type;
      args.kv.keys = wide ? static_cast<void*>(device.put(keys)) : device.put(narrow(keys));
      args.kv.values = wide ? static_cast<void*>(device.put(values)) : device.put(narrow(values));
      args.out = poison_on(device, batch.tokens * width);
      cuda::run_attention(context(), batch, args);
      const auto got = OnDevice::get(args.out, count);
      EXPECT_LT(distance(got, expected), wide ? 1e-5 : kTolerance);
      // Row by row, so that a few wrong ones do not drown.
      for (int t = 0; t < o.batch.tokens; ++t) {
        const std::vector<float> a(got.begin() + t * width, got.begin() + (t + 1) * width),
            b(expected.begin() + t * width, expected.begin() + (t + 1) * width);
        EXPECT_LT(distance(a, b), 2e-2) << "token " << t;
      }
      args.out = poison_on(device, batch.tokens * width);
      cuda::run_attention(context(), batch, args);
      EXPECT_TRUE(same_bits(OnDevice::get(args.out, count), got)) << "another run, other bits";
      // The last sequence alone has the same bits.
      const Owned& all = o;
      const int s = static_cast<int>(spans.size()) - 1, first = all.query_start[s];
      Owned alone;
      for (int i = 0; i < spans[s].count; ++i) {
        alone.ids.push_back(0), alone.positions.push_back(spans[s].before + i);
        alone.adapter.push_back(-1), alone.sequence.push_back(0), alone.slots.push_back(-1);
      }
      alone.query_start = {0, spans[s].count};
      alone.context_len = {all.context_len[s]};
      const int blocks = all.kv[0].max_blocks;
      alone.block_table.assign(all.block_table.begin() + s * blocks,
                               all.block_table.begin() + (s + 1) * blocks);
      alone.finish(blocks);
      args.q += first * width;
      if (args.gate) args.gate += first * width;
      const size_t part = spans[s].count * width;
      args.out = poison_on(device, part);
      cuda::run_attention(context(), device.put(alone.batch), args);
      EXPECT_TRUE(same_bits(OnDevice::get(args.out, part),
                            {got.begin() + first * width, got.begin() + first * width + part}));
    }
  }
}

struct RouterCase {
  RouterRule rule;
  int experts, top_k, groups, top_groups;
  bool correction, normalized, forced;
};
constexpr auto kTop = RouterRule::kTopKThenSoftmax, kAll = RouterRule::kSoftmaxThenTopK,
               kSigmoid = RouterRule::kSigmoidThenTopK;
const RouterCase kRouters[] = {
    {kTop, 32, 4, 1, 1, false, true, false},      {kTop, 128, 4, 1, 1, false, true, true},
    {kAll, 64, 8, 1, 1, false, true, false},      {kAll, 512, 10, 1, 1, false, true, true},
    {kSigmoid, 16, 3, 4, 2, true, true, false},   {kSigmoid, 256, 8, 8, 4, true, true, false},
    {kSigmoid, 24, 4, 6, 3, false, false, true},  {kSigmoid, 512, 22, 1, 1, true, true, false},
    {kSigmoid, 20, 5, 20, 7, true, false, false}, {kTop, 7, 7, 1, 1, false, true, false}};

TEST(CudaStages, ChoiceOfExperts) {
  Rng rng(54);
  for (const RouterCase& c : kRouters) {
    SCOPED_TRACE(c.experts);
    OnDevice device;
    const Step step(rng, {{0, 30}, {5, 1}, {9, 1}}, 0);
    const Batch batch = step.padded(device);
    const int tokens = step.owned->batch.tokens, all = batch.tokens;
    auto logits = rng.floats(int64_t{all} * c.experts, 2);
    for (float& v : logits) v = std::round(v * 4) / 4;  // ties
    const auto correction = rng.floats(c.experts, 0.3f);
    std::vector<int32_t> forced;
    for (int i = 0; i < all * c.top_k; ++i) forced.push_back(rng.below(c.experts));
    RouteArgs args{};
    args.rule = c.rule, args.experts = c.experts, args.top_k = c.top_k;
    args.choice = {c.correction ? correction.data() : nullptr, c.groups, c.top_groups, c.normalized,
                   2.5f};
    std::vector<int32_t> expert(tokens * c.top_k);
    std::vector<float> weight(tokens * c.top_k);
    for (int t = 0; t < tokens; ++t) {
      reference::choose_experts(args, &logits[int64_t{t} * c.experts],
                                c.forced ? &forced[t * c.top_k] : nullptr, &expert[t * c.top_k],
                                &weight[t * c.top_k]);
    }
    args.forced = c.forced ? device.put(forced) : nullptr;
    args.choice.correction = c.correction ? device.put(correction) : nullptr;
    args.weight = poison_on(device, all * c.top_k);
    args.expert = device.put(std::vector<int32_t>(all * c.top_k, 77));
    cuda::choose_experts(context(), batch, args, device.put(logits));
    auto got = OnDevice::get(args.expert, all * c.top_k);
    const auto weights = OnDevice::get(args.weight, all * c.top_k);
    for (size_t i = expert.size(); i < got.size(); ++i) {
      EXPECT_EQ(got[i], -1);
      EXPECT_EQ(weights[i], 0.0f);
    }
    got.resize(expert.size());
    EXPECT_EQ(got, expert);
    EXPECT_LT(distance({weights.begin(), weights.begin() + weight.size()}, weight), 1e-6);
  }
}

struct Mixer {
  int key_heads, key_dim, heads, value_dim, kernel;
};
const Mixer kMixers[] = {{2, 128, 4, 128, 4}, {2, 128, 4, 64, 4}, {3, 24, 3, 40, 2},
                         {2, 7, 6, 9, 3},     {1, 130, 2, 33, 1}, {2, 64, 2, 36, 4}};

// One layer of either kind, its inputs by token of each sequence, run in steps of any cut.
struct MixerRun {
  std::vector<std::vector<float>> out;
  std::vector<float> conv, state;
};
MixerRun run_mixer(Rng& rng, const Mixer& m, bool mamba, const std::vector<int>& lengths,
                   const std::vector<std::vector<int>>& steps, bool on_gpu) {
  const int64_t keys = int64_t{m.key_heads} * m.key_dim, values = int64_t{m.heads} * m.value_dim;
  const int64_t channels = 2 * keys + values, rows = mamba ? values + channels + m.heads : channels;
  const int slots = static_cast<int>(lengths.size()) + 2;
  OnDevice device;
  std::vector<std::vector<float>> kept;
  const auto put = [&](std::vector<float> v) -> float* {
    if (on_gpu) return device.put(v);
    kept.push_back(std::move(v));
    return kept.back().data();
  };
  kept.reserve(1000);
  float* conv = put(rng.floats(m.kernel * channels, 0.5f));
  float* bias = put(rng.floats(channels, 0.2f));
  float *a_log = put(rng.floats(m.heads)), *dt_bias = put(rng.floats(m.heads)),
        *d = put(rng.floats(m.heads)), *norm = put(rng.floats(values));
  StateLayer state{put(poisoned(slots * (m.kernel - 1) * channels)),
                   put(poisoned(slots * values * m.key_dim))};
  std::vector<std::vector<float>> u, z, a, b;
  for (int length : lengths) {
    u.push_back(rng.floats(length * rows)), z.push_back(rng.floats(length * values));
    a.push_back(rng.floats(length * m.heads)), b.push_back(rng.floats(length * m.heads));
  }
  MixerRun result{std::vector<std::vector<float>>(lengths.size()), {}, {}};
  std::vector<int> done(lengths.size(), 0);
  ThreadPool pool(1);
  for (const auto& counts : steps) {
    std::vector<Span> spans;
    std::vector<int> who;
    std::vector<float> in[4];
    for (size_t s = 0; s < lengths.size(); ++s) {
      if (counts[s] == 0) continue;
      spans.push_back({done[s], counts[s]}), who.push_back(static_cast<int>(s));
      const auto add = [&](std::vector<float>& to, const std::vector<float>& from, int64_t each) {
        to.insert(to.end(), from.begin() + done[s] * each,
                  from.begin() + (done[s] + counts[s]) * each);
      };
      add(in[0], u[s], rows), add(in[1], z[s], values), add(in[2], a[s], m.heads),
          add(in[3], b[s], m.heads);
      done[s] += counts[s];
    }
    Rng other(1);
    Step step(other, spans, 0);
    for (size_t i = 0; i < who.size(); ++i) step.state_slot[i] = slots - 1 - who[i];
    step.owned->batch.state_slot = step.state_slot.data();
    const Batch batch = on_gpu ? step.padded(device) : step.owned->batch;
    const int64_t tokens = step.owned->batch.tokens;
    const int64_t widths[4] = {rows, values, m.heads, m.heads};
    float* x[4];
    for (int i = 0; i < 4; ++i) {
      in[i].resize(batch.tokens * widths[i], std::nanf(""));
      x[i] = put(in[i]);
    }
    float* out = put(poisoned(batch.tokens * values));
    if (mamba) {
      MambaArgs args{};
      args.kernel = m.kernel, args.conv = conv, args.conv_bias = m.kernel == 3 ? nullptr : bias;
      args.a_log = a_log, args.d = d, args.dt_bias = dt_bias, args.out_norm = {norm, 1e-5f};
      args.heads = m.heads, args.head_dim = m.value_dim, args.groups = m.key_heads;
      args.state_dim = m.key_dim, args.dt_min = m.kernel == 2 ? 0.3f : 0;
      args.dt_max = m.kernel == 2 ? 1.1f : INFINITY, args.state = state, args.out = out;
      if (on_gpu)
        cuda::mix_mamba(context(), batch, args, x[0]);
      else
        reference::mamba(pool, batch, args, x[0]);
    } else {
      DeltaNetArgs args{};
      args.kernel = m.kernel, args.conv = conv, args.a_log = a_log, args.dt_bias = dt_bias;
      args.out_norm = {norm, 1e-6f}, args.key_heads = m.key_heads, args.key_dim = m.key_dim;
      args.value_heads = m.heads, args.value_dim = m.value_dim, args.state = state, args.out = out;
      if (on_gpu)
        cuda::mix_delta_net(context(), batch, args, x[0], x[1], x[2], x[3]);
      else
        reference::delta_net(pool, batch, args, x[0], x[1], x[2], x[3]);
    }
    const auto got = on_gpu ? OnDevice::get(out, tokens * values)
                            : std::vector<float>(out, out + tokens * values);
    auto from = got.begin();
    for (size_t i = 0; i < who.size(); ++i) {
      auto& to = result.out[who[i]];
      to.insert(to.end(), from, from + spans[i].count * values);
      from += spans[i].count * values;
    }
  }
  const auto read = [&](const float* at, size_t count) {
    return on_gpu ? OnDevice::get(at, count) : std::vector<float>(at, at + count);
  };
  // Slots that no sequence has stay as they were.
  const size_t conv_each = (m.kernel - 1) * channels, state_each = values * m.key_dim;
  for (float v : read(state.state, 2 * state_each)) EXPECT_TRUE(std::isnan(v));
  result.conv = read(state.conv + 2 * conv_each, lengths.size() * conv_each);
  result.state = read(state.state + 2 * state_each, lengths.size() * state_each);
  return result;
}

TEST(CudaStages, RecurrentMixers) {
  const std::vector<int> lengths = {1, 5, 19, 75, 2};
  const std::vector<std::vector<int>> steps = {
      {0, 2, 19, 1, 0}, {1, 1, 0, 64, 1}, {0, 1, 0, 9, 1}, {0, 1, 0, 1, 0}};
  for (const Mixer& m : kMixers) {
    for (const bool mamba : {false, true}) {
      SCOPED_TRACE(testing::Message()
                   << m.key_dim << "x" << m.value_dim << (mamba ? " mamba" : ""));
      const auto run = [&](const std::vector<std::vector<int>>& cut, bool on_gpu) {
        Rng rng(55);
        return run_mixer(rng, m, mamba, lengths, cut, on_gpu);
      };
      const MixerRun expected = run({lengths}, false), once = run({lengths}, true),
                     pieces = run(steps, true);
      for (size_t s = 0; s < lengths.size(); ++s) {
        EXPECT_LT(distance(once.out[s], expected.out[s]), 1e-4) << "length " << lengths[s];
        EXPECT_TRUE(same_bits(once.out[s], pieces.out[s])) << "other bits in pieces";
      }
      EXPECT_TRUE(same_bits(once.state, pieces.state));
      EXPECT_TRUE(same_bits(once.conv, pieces.conv));
      EXPECT_LT(distance(once.state, expected.state), 1e-4);
      if (m.kernel > 1) EXPECT_LT(distance(once.conv, expected.conv), 1e-6);
    }
  }
}

}  // namespace
}  // namespace lk::test
