// Every stage of every kernels row that this CPU supports against the reference, over formats,
// shapes, ranks and mixes; and the same bits for a token alone and in company.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/reference/reference_kernels.h"
#include "kernels/select.h"
#include "tests/kernels/op_case.h"

namespace lk::test {
namespace {

const std::vector<int> kRanks = {1, 3, 0, 4, 16, 64, 256};

class Ops : public testing::TestWithParam<const KernelsRow*> {
 protected:
  void SetUp() override {
    if (!GetParam()->supported())
      GTEST_SKIP() << GetParam()->name << " is only compiled on this CPU";
    use_threads(2);
    // Pair products round the activations to bfloat16. A few outputs that nearly cancel may be
    // further off than all outputs of a format are on average.
    tolerance_ = GetParam()->name == "avx512bf16" ? 6e-3 : 1e-5;
    mean_tolerance_ = GetParam()->name == "avx512bf16" ? 3e-3 : 1e-5;
  }

  void use_threads(int threads) {
    fast_ = GetParam()->make(threads);
    reference_ = make_reference_kernels(threads);
  }
  // What several threads do to a format's products they do to every format's: two formats show it,
  // the others do without the waiting of threads for each other.
  void use_threads_for(const Format& format) {
    use_threads(&format == &kFormatBF16 || &format == &kFormatMxfp4 ? 2 : 1);
  }

  struct ExpertLayer {
    const Packed &fast_up, &fast_down, &ref_up, &ref_down;
    int experts, top_k, inner;
  };
  // Adds the layer's output to `fast` and, by the reference, to `reference` [tokens, hidden].
  void run_experts(const Batch& batch, const ExpertLayer& layer, const float* x,
                   const int32_t* expert, const float* weight, std::vector<float>& fast,
                   std::vector<float>& reference) {
    ExpertArgs args{.x = x,
                    .expert = expert,
                    .weight = weight,
                    .experts = layer.experts,
                    .top_k = layer.top_k,
                    .intermediate = layer.inner,
                    .up = layer.fast_up.linear,
                    .down = layer.fast_down.linear,
                    .activation = Activation::kClampedSwiGlu,
                    .alpha = 1.702f,
                    .limit = 7.0f,
                    .residual = fast.data()};
    fast_->experts(batch, args);
    args.up = layer.ref_up.linear;
    args.down = layer.ref_down.linear;
    args.residual = reference.data();
    reference_->experts(batch, args);
  }

  void router_head_embedding(const Format& format);
  std::unique_ptr<Kernels> fast_, reference_;
  double tolerance_ = 0, mean_tolerance_ = 0;
};

// Mean over the cases of one format.
struct Mean {
  double sum = 0;
  int count = 0;
  double add(double value) {
    sum += value;
    ++count;
    return value;
  }
  double value() const { return sum / count; }
};

struct DenseShape {
  int64_t out, in;
};
const DenseShape kDense[] = {{16, 32}, {1, 32},   {40, 96}, {130, 72}, {257, 192},
                             {33, 1},  {64, 200}, {48, 80}, {150, 304}};

// Formats whose codes come in whole groups have no narrower linears.
bool has_width(const Format& format, int64_t in) {
  const bool float_scales = format.scale == ScaleCodec::kNone || format.scale == ScaleCodec::kFloat;
  return float_scales || in % format.group_cols == 0;
}

TEST_P(Ops, DenseWithAdapters) {
  Rng rng(1);
  for (const Format* format : all_formats()) {
    use_threads_for(*format);
    Mean mean;
    for (const DenseShape& shape : kDense) {
      if (!has_width(*format, shape.in)) continue;
      for (bool bias : {false, true}) {
        if (is_quantized(*format) && !bias) continue;  // the codec has no part in it
        RandomLinear source(rng, *format, Stage::kAttentionOut, 0, shape.out, shape.in,
                            RowOrder::kPlain, bias);
        const auto adapters = adapters_for(rng, source.spec, kRanks);
        Packed fast(*fast_, source, adapters), reference(*reference_, source, adapters);
        std::vector<std::vector<float>> rows;  // results of the largest batch, for the bits
        for (int tokens : {1, 2, 3, 6, 7, 13, 25, 200}) {
          Rng inputs(7);
          const auto x = inputs.floats(200 * shape.in);
          const auto residual = inputs.floats(200 * shape.out);
          auto batch = single_tokens(inputs, 200, int(kRanks.size()));
          batch->batch.tokens = tokens;
          std::vector<float> a(residual.begin(), residual.begin() + tokens * shape.out), b = a;
          fast_->output(batch->batch, {x.data(), fast.linear, a.data()});
          reference_->output(batch->batch, {x.data(), reference.linear, b.data()});
          EXPECT_LT(mean.add(distance(a, b)), tolerance_)
              << format->name << " " << shape.out << "x" << shape.in << " tokens " << tokens;
          for (int t = 0; t < tokens; ++t) {
            std::vector<float> row(a.begin() + t * shape.out, a.begin() + (t + 1) * shape.out);
            if (t < static_cast<int>(rows.size())) {
              EXPECT_EQ(0, std::memcmp(row.data(), rows[t].data(), row.size() * sizeof(float)))
                  << format->name << " row " << t << " of " << tokens << " tokens has other bits";
            } else {
              rows.push_back(row);
            }
          }
        }
      }
    }
    EXPECT_LT(mean.value(), mean_tolerance_) << format->name;
  }
}

struct ExpertShape {
  int experts, top_k;
  int64_t hidden, inner;
};
const ExpertShape kExperts[] = {{8, 2, 64, 64}, {4, 4, 96, 32}, {16, 3, 160, 40}, {3, 1, 32, 17}};

TEST_P(Ops, ExpertsWithBothSeams) {
  Rng rng(2);
  for (const Format* format : all_formats()) {
    use_threads_for(*format);
    Mean mean;
    for (RowOrder order : {RowOrder::kInterleavedGateUp, RowOrder::kStackedGateUp}) {
      for (const ExpertShape& s : kExperts) {
        if (!has_width(*format, s.inner) || !has_width(*format, s.hidden)) continue;
        RandomLinear up(rng, *format, Stage::kExpertUp, s.experts, 2 * s.inner, s.hidden, order,
                        true);
        RandomLinear down(rng, *format, Stage::kExpertDown, s.experts, s.hidden, s.inner,
                          RowOrder::kPlain, true);
        const auto up_adapters = adapters_for(rng, up.spec, kRanks);
        const auto down_adapters = adapters_for(rng, down.spec, {2, 0, 3, 8, 16, 64, 200});
        Packed fast_up(*fast_, up, up_adapters), fast_down(*fast_, down, down_adapters);
        Packed ref_up(*reference_, up, up_adapters), ref_down(*reference_, down, down_adapters);
        std::vector<float> largest;
        for (int tokens : {150, 40, 9, 1}) {
          Rng inputs(9);
          const auto x = inputs.floats(150 * s.hidden, 2.0f);
          auto batch = single_tokens(inputs, 150, int(kRanks.size()));
          batch->batch.tokens = tokens;
          std::vector<int32_t> expert;
          std::vector<float> weight;
          for (int t = 0; t < 150; ++t) {
            std::vector<int> all(s.experts);
            std::iota(all.begin(), all.end(), 0);
            for (int k = 0; k < s.top_k; ++k) {
              // Expert 0 is left without any token in the larger models.
              const int at = inputs.below(static_cast<int>(all.size()) - (s.experts > 8 ? 1 : 0)) +
                             (s.experts > 8 ? 1 : 0);
              expert.push_back(all[at]);
              all.erase(all.begin() + at);
              weight.push_back(0.1f + 0.01f * static_cast<float>(inputs.below(90)));
            }
          }
          std::vector<float> a(tokens * s.hidden, 1.0f), b = a;
          run_experts(batch->batch,
                      {fast_up, fast_down, ref_up, ref_down, s.experts, s.top_k, int(s.inner)},
                      x.data(), expert.data(), weight.data(), a, b);
          EXPECT_LT(mean.add(distance(a, b)), tolerance_)
              << format->name << " hidden " << s.hidden << " tokens " << tokens;
          if (largest.empty()) largest = a;
          EXPECT_EQ(0, std::memcmp(a.data(), largest.data(), a.size() * sizeof(float)))
              << format->name << " hidden " << s.hidden << ": other bits with " << tokens
              << " tokens";
        }
      }
    }
    EXPECT_LT(mean.value(), mean_tolerance_) << format->name;
  }
}

// Every code of every element alone: one-hot activations bring each weight out by itself.
TEST_P(Ops, EveryCode) {
  Rng rng(6);
  const int64_t out = 32, in = 256;
  for (const Format* format : all_formats()) {
    RandomLinear source(rng, *format, Stage::kAttentionOut, 0, out, in, RowOrder::kPlain, false);
    put_every_code(source, *format);
    Packed fast(*fast_, source, {});
    auto batch = single_tokens(rng, static_cast<int>(in), 0);
    std::vector<float> x(in * in, 0.0f), y(in * out, 0.0f), row(in);
    for (int64_t t = 0; t < in; ++t) x[t * in + t] = 1.0f;
    for (const int tokens : {1, 256}) {
      for (int first = 0; first < in; first += tokens) {
        batch->batch.tokens = tokens;
        fast_->output(batch->batch, {x.data() + first * in, fast.linear, y.data() + first * out});
      }
      for (int64_t r = 0; r < out; ++r) {
        decode_row(*format, source.stored.experts[0][0], r, row.data());
        for (int64_t c = 0; c < in; ++c) {
          ASSERT_NEAR(y[c * out + r], row[c], 4e-7 * std::abs(row[c]))
              << format->name << " row " << r << " channel " << c << " tokens " << tokens;
        }
      }
      std::fill(y.begin(), y.end(), 0.0f);
    }
  }
}

struct AttentionShape {
  int heads, kv_heads, head_dim, window;
  bool sinks;
  bool gated = false;
  int rotary = 0;  // 0: half of head_dim
};
const AttentionShape kAttention[] = {{8, 1, 64, 0, true},
                                     {6, 2, 64, 37, true},
                                     {4, 4, 128, 0, false},
                                     {3, 1, 256, 16, false},
                                     {10, 2, 80, 1, true},
                                     {2, 2, 24, 5, true},
                                     {4, 1, 256, 0, false, true, 64},
                                     {6, 3, 64, 0, false, true, 16},
                                     {4, 2, 24, 9, true, true, 6}};

// Prefill, continued prefill and decode of several sequences in one ragged batch, blocks scattered.
TEST_P(Ops, QkvAndAttention) {
  Rng rng(3);
  for (KvType type : {KvType::kBF16, KvType::kF32}) {
    for (const AttentionShape& s : kAttention) {
      const int64_t hidden = 96, q_dim = int64_t{s.heads} * s.head_dim,
                    kv_dim = int64_t{s.kv_heads} * s.head_dim;
      RandomLinear q(rng, kFormatBF16, Stage::kQuery, 0, (s.gated ? 2 : 1) * q_dim, hidden,
                     RowOrder::kPlain, true);
      RandomLinear k(rng, kFormatBF16, Stage::kKey, 0, kv_dim, hidden, RowOrder::kPlain, true);
      RandomLinear v(rng, kFormatBF16, Stage::kValue, 0, kv_dim, hidden, RowOrder::kPlain, false);
      const auto qa = adapters_for(rng, q.spec, {4, 0}), ka = adapters_for(rng, k.spec, {0, 7}),
                 va = adapters_for(rng, v.spec, {2, 9});
      const std::vector<int> lengths = {1, 16, 45, 100};
      const int total_blocks = 32, rotary = s.rotary > 0 ? s.rotary : s.head_dim / 2;
      const auto weight = rng.floats(hidden), head_norm = rng.floats(s.head_dim);
      const auto sinks = rng.floats(s.heads);
      // inputs of every token of every sequence
      std::vector<std::vector<float>> x, cos, sin;
      for (int length : lengths) {
        x.push_back(rng.floats(length * hidden));
        cos.push_back(rng.floats(length * (rotary / 2)));
        sin.push_back(rng.floats(length * (rotary / 2)));
      }
      std::vector<int32_t> order(total_blocks);
      std::iota(order.begin(), order.end(), 0);
      for (int i = total_blocks - 1; i > 0; --i) std::swap(order[i], order[rng.below(i + 1)]);

      auto run = [&](Kernels& kernels, const std::vector<std::vector<int>>& steps) {
        Packed pq(kernels, q, qa), pk(kernels, k, ka), pv(kernels, v, va);
        const size_t element = type == KvType::kF32 ? 4 : 2;
        std::vector<std::byte> keys(total_blocks * kv_dim * kKvBlockTokens * element),
            values(keys.size());
        const KvLayer cache{keys.data(), values.data(), type, 0};
        std::vector<std::vector<float>> out(lengths.size());
        std::vector<int> done(lengths.size(), 0);
        for (const std::vector<int>& step : steps) {  // tokens of each sequence in this step
          Owned o;
          std::vector<float> residual, c, sn;
          const int max_blocks = 7;
          int blocks = 0;
          for (size_t s2 = 0; s2 < lengths.size(); ++s2) {
            const int first_block = blocks;
            blocks += (lengths[s2] + kKvBlockTokens - 1) / kKvBlockTokens;
            if (step[s2] == 0) continue;
            o.query_start.push_back(static_cast<int>(o.ids.size()));
            for (int i = 0; i < step[s2]; ++i) {
              const int p = done[s2] + i;
              o.ids.push_back(0);
              o.positions.push_back(p);
              o.adapter.push_back(static_cast<int>(s2 % 3) - 1);
              o.sequence.push_back(static_cast<int>(o.context_len.size()));
              o.slots.push_back(int64_t{order[first_block + p / kKvBlockTokens]} * kKvBlockTokens +
                                p % kKvBlockTokens);
              residual.insert(residual.end(), x[s2].begin() + p * hidden,
                              x[s2].begin() + (p + 1) * hidden);
              c.insert(c.end(), cos[s2].begin() + p * (rotary / 2),
                       cos[s2].begin() + (p + 1) * (rotary / 2));
              sn.insert(sn.end(), sin[s2].begin() + p * (rotary / 2),
                        sin[s2].begin() + (p + 1) * (rotary / 2));
            }
            o.context_len.push_back(done[s2] + step[s2]);
            for (int b = 0; b < max_blocks; ++b) {
              const int count = (lengths[s2] + kKvBlockTokens - 1) / kKvBlockTokens;
              // Blocks that lie wholly behind the window may be gone.
              const bool gone = s.window > 0 && (b + 1) * kKvBlockTokens <= done[s2] + 1 - s.window;
              o.block_table.push_back(b < count && !gone ? order[first_block + b] : -1);
            }
          }
          o.query_start.push_back(static_cast<int>(o.ids.size()));
          o.finish(max_blocks);
          auto q_out = poisoned(o.batch.tokens * q_dim),
               attended = poisoned(o.batch.tokens * q_dim), gate = poisoned(o.batch.tokens * q_dim);
          // Gated layers have a norm of each head, which must leave the gate alone.
          const Norm qk_norm{s.gated ? head_norm.data() : nullptr, 1e-6f};
          kernels.qkv(o.batch, {residual.data(),
                                {weight.data(), 1e-5f},
                                pq.linear,
                                pk.linear,
                                pv.linear,
                                s.heads,
                                s.kv_heads,
                                s.head_dim,
                                rotary,
                                c.data(),
                                sn.data(),
                                q_out.data(),
                                cache,
                                qk_norm,
                                qk_norm,
                                false,
                                0,
                                s.gated ? gate.data() : nullptr});
          kernels.attention(o.batch,
                            {q_out.data(), cache, s.heads, s.kv_heads, s.head_dim, s.window,
                             1.0f / std::sqrt(float(s.head_dim)), s.sinks ? sinks.data() : nullptr,
                             attended.data(), s.gated ? gate.data() : nullptr});
          int t = 0;
          for (size_t s2 = 0; s2 < lengths.size(); ++s2) {
            out[s2].insert(out[s2].end(), attended.begin() + t * q_dim,
                           attended.begin() + (t + step[s2]) * q_dim);
            t += step[s2];
            done[s2] += step[s2];
          }
        }
        return out;
      };
      const std::vector<std::vector<int>> whole = {lengths};
      const std::vector<std::vector<int>> chunked = {
          {0, 7, 20, 0}, {1, 1, 25, 33}, {0, 8, 0, 1}, {0, 0, 0, 66}};
      const auto expected = run(*reference_, whole);
      const auto once = run(*fast_, whole), pieces = run(*fast_, chunked);
      for (size_t s2 = 0; s2 < lengths.size(); ++s2) {
        // In bfloat16 a value next to a rounding boundary may fall to the other side.
        EXPECT_LT(distance(once[s2], expected[s2]),
                  type == KvType::kF32 ? tolerance_ : std::max(tolerance_, 3e-3))
            << "heads " << s.heads << " dim " << s.head_dim << " window " << s.window << " length "
            << lengths[s2];
        EXPECT_EQ(0,
                  std::memcmp(once[s2].data(), pieces[s2].data(), once[s2].size() * sizeof(float)))
            << "heads " << s.heads << " dim " << s.head_dim << " window " << s.window << " length "
            << lengths[s2] << ": other bits in chunks";
      }
    }
  }
}

void Ops::router_head_embedding(const Format& format) {
  SCOPED_TRACE(format.name);
  Rng rng(4);
  const int64_t hidden = 96;
  const int tokens = 37, experts = 19, top_k = 5, vocab = 301;
  RandomLinear router(rng, format, Stage::kRouter, 0, experts, hidden, RowOrder::kPlain, true);
  RandomLinear head(rng, format, Stage::kHead, 0, vocab, hidden, RowOrder::kPlain, false);
  RandomLinear table(rng, format, Stage::kEmbedding, 0, vocab, hidden, RowOrder::kPlain, false);
  const auto ra = adapters_for(rng, router.spec, kRanks), ha = adapters_for(rng, head.spec, kRanks),
             ta = adapters_for(rng, table.spec, kRanks);
  const auto weight = rng.floats(hidden);
  auto batch = single_tokens(rng, tokens, int(kRanks.size()), vocab);
  batch->batch.logit_count = tokens / 2;
  for (int r = 0; r < tokens / 2; ++r) batch->logit_rows[r] = tokens - 1 - 2 * r;
  const Norm norm{weight.data(), 1e-5f};
  struct Out {
    std::vector<float> residual, x, weight, logits;
    std::vector<int32_t> expert;
  };
  auto run = [&](Kernels& kernels, const int32_t* forced) {
    Packed pr(kernels, router, ra), ph(kernels, head, ha), pt(kernels, table, ta);
    Out o{poisoned(tokens * hidden), poisoned(tokens * hidden), poisoned(tokens * top_k),
          poisoned(tokens / 2 * vocab), std::vector<int32_t>(tokens * top_k, -1)};
    kernels.embed(batch->batch, {pt.linear, o.residual.data()});
    kernels.route(batch->batch,
                  {o.residual.data(), norm, pr.linear, RouterRule::kTopKThenSoftmax, experts, top_k,
                   forced, o.x.data(), o.expert.data(), o.weight.data()});
    kernels.head(batch->batch, {o.residual.data(), norm, ph.linear, o.logits.data()});
    return o;
  };
  const Out expected = run(*reference_, nullptr), got = run(*fast_, nullptr);
  EXPECT_LT(distance(got.residual, expected.residual), 1e-5);
  EXPECT_LT(distance(got.x, expected.x), 1e-5);
  EXPECT_LT(distance(got.logits, expected.logits), tolerance_);
  int same = 0;
  for (int i = 0; i < tokens * top_k; ++i) same += got.expert[i] == expected.expert[i];
  EXPECT_GE(same, tokens * top_k * (tolerance_ > 1e-3 ? 0.9 : 1.0));
  const Out replayed = run(*fast_, expected.expert.data());
  EXPECT_EQ(replayed.expert, expected.expert);
  EXPECT_LT(distance(replayed.weight, expected.weight), tolerance_ * 3);
}

TEST_P(Ops, RouterAndHeadAndEmbedding) {
  for (const Format* format : all_formats()) {
    use_threads_for(*format);
    router_head_embedding(*format);
  }
}

// Extremes of the clamp, large and small gates.
TEST_P(Ops, ClampedSwiGluExtremes) {
  Rng rng(5);
  const int64_t hidden = 32, inner = 48;
  RandomLinear up(rng, kFormatF32, Stage::kExpertUp, 1, 2 * inner, hidden,
                  RowOrder::kInterleavedGateUp, true);
  RandomLinear down(rng, kFormatF32, Stage::kExpertDown, 1, hidden, inner, RowOrder::kPlain, false);
  Packed fast_up(*fast_, up, {}), fast_down(*fast_, down, {}), ref_up(*reference_, up, {}),
      ref_down(*reference_, down, {});
  for (float deviation : {1e-6f, 1.0f, 30.0f, 1e4f}) {
    auto batch = single_tokens(rng, 1, 0);
    const auto x = rng.floats(hidden, deviation);
    const int32_t expert = 0;
    const float weight = 1;
    std::vector<float> a(hidden, 0.0f), b = a;
    run_experts(batch->batch, {fast_up, fast_down, ref_up, ref_down, 1, 1, int(inner)}, x.data(),
                &expert, &weight, a, b);
    EXPECT_LT(distance(a, b), 2e-5) << deviation;
  }
}

std::vector<const KernelsRow*> fast_rows() {
  std::vector<const KernelsRow*> rows;
  for (const KernelsRow& row : kernels_table()) {
    if (row.name != "reference") rows.push_back(&row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Kernels, Ops, testing::ValuesIn(fast_rows()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace lk::test
