// Stages that only some architectures have: routers by sigmoid against a plain sort, shared experts
// and projections against the reference, over formats, adapters and company.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/reference/reference_kernels.h"
#include "kernels/select.h"
#include "tests/kernels/op_case.h"

namespace lk::test {
namespace {

const std::vector<int> kRanks = {1, 0, 8, 3};

class Stages : public testing::TestWithParam<const KernelsRow*> {
 protected:
  void SetUp() override {
    if (!GetParam()->supported())
      GTEST_SKIP() << GetParam()->name << " is only compiled on this CPU";
    kernels_ = GetParam()->make(2);
    reference_ = make_reference_kernels(2);
    tolerance_ = GetParam()->name == "avx512bf16" ? 6e-3 : 1e-5;
  }
  std::unique_ptr<Kernels> kernels_, reference_;
  double tolerance_ = 0;
};

bool has_width(const Format& format, int64_t in) {
  const bool float_scales = format.scale == ScaleCodec::kNone || format.scale == ScaleCodec::kFloat;
  return float_scales || in % format.group_cols == 0;
}

struct RouterCase {
  int experts, top_k, groups, top_groups;
  bool correction, normalized;
  float scale;
};
const RouterCase kRouters[] = {{16, 6, 1, 1, true, true, 2.5f},   {16, 3, 4, 2, true, true, 1.0f},
                               {24, 4, 6, 3, false, false, 5.0f}, {12, 2, 12, 5, true, true, 1.0f},
                               {128, 22, 1, 1, true, true, 5.0f}, {20, 5, 5, 5, true, false, 1.0f}};

// The choice by sorting: groups by the sum of their two best, then experts of the kept groups.
std::vector<int> sorted_choice(const RouterCase& r, const std::vector<double>& score) {
  const int size = r.experts / r.groups;
  std::vector<int> groups(r.groups), experts;
  std::vector<double> value(r.groups, 0);
  for (int g = 0; g < r.groups; ++g) {
    std::vector<double> mine(score.begin() + g * size, score.begin() + (g + 1) * size);
    std::sort(mine.rbegin(), mine.rend());
    value[g] = mine[0] + (size > 1 ? mine[1] : 0);
  }
  std::iota(groups.begin(), groups.end(), 0);
  std::stable_sort(groups.begin(), groups.end(), [&](int a, int b) { return value[a] > value[b]; });
  groups.resize(r.top_groups);
  for (int e = 0; e < r.experts; ++e) {
    if (std::find(groups.begin(), groups.end(), e / size) != groups.end()) experts.push_back(e);
  }
  std::stable_sort(experts.begin(), experts.end(),
                   [&](int a, int b) { return score[a] > score[b]; });
  experts.resize(r.top_k);
  return experts;
}

TEST_P(Stages, SigmoidRouter) {
  Rng rng(41);
  for (const RouterCase& r : kRouters) {
    constexpr int kTokens = 33;
    const int64_t hidden = 32;
    RandomLinear router(rng, kFormatF32, Stage::kRouter, 0, r.experts, hidden, RowOrder::kPlain,
                        false);
    const Packed linear(*kernels_, router, {});
    const auto residual = rng.floats(kTokens * hidden), norm = rng.floats(hidden),
               correction = rng.floats(r.experts, 0.3f);
    auto batch = single_tokens(rng, kTokens, 0);
    auto x = poisoned(kTokens * hidden), weight = poisoned(kTokens * r.top_k);
    std::vector<int32_t> expert(kTokens * r.top_k, -1);
    RouteArgs args{.residual = residual.data(),
                   .norm = {norm.data(), 1e-5f},
                   .router = linear.linear,
                   .rule = RouterRule::kSigmoidThenTopK,
                   .experts = r.experts,
                   .top_k = r.top_k,
                   .forced = nullptr,
                   .x = x.data(),
                   .expert = expert.data(),
                   .weight = weight.data(),
                   .choice = {.correction = r.correction ? correction.data() : nullptr,
                              .groups = r.groups,
                              .top_groups = r.top_groups,
                              .normalized = r.normalized,
                              .scale = r.scale}};
    kernels_->route(batch->batch, args);
    std::vector<float> row(hidden);
    for (int t = 0; t < kTokens; ++t) {
      std::vector<double> sigmoid(r.experts), score(r.experts);
      for (int e = 0; e < r.experts; ++e) {
        decode_row(kFormatF32, router.stored.experts[0][0], e, row.data());
        double logit = 0;
        for (int64_t i = 0; i < hidden; ++i) logit += double{row[i]} * x[t * hidden + i];
        sigmoid[e] = 1 / (1 + std::exp(-logit));
        score[e] = sigmoid[e] + (r.correction ? correction[e] : 0);
      }
      const std::vector<int> expected = sorted_choice(r, score);
      double sum = 0;
      for (const int e : expected) sum += sigmoid[e];
      for (int k = 0; k < r.top_k; ++k) {
        EXPECT_EQ(expert[t * r.top_k + k], expected[k]) << "slot " << k << " of token " << t;
        EXPECT_NEAR(weight[t * r.top_k + k],
                    r.scale * sigmoid[expected[k]] / (r.normalized ? sum : 1), 1e-5 * r.scale);
      }
    }
    // Experts from elsewhere get weights from their own scores, without the correction.
    std::vector<int32_t> forced(expert.rbegin(), expert.rend());
    auto forced_weight = poisoned(kTokens * r.top_k);
    args.forced = forced.data();
    args.weight = forced_weight.data();
    kernels_->route(batch->batch, args);
    EXPECT_EQ(expert, forced);
    RouteArgs plain = args;
    const Packed reference_linear(*reference_, router, {});
    auto expected_weight = poisoned(kTokens * r.top_k);
    plain.router = reference_linear.linear;
    plain.weight = expected_weight.data();
    reference_->route(batch->batch, plain);
    EXPECT_LT(distance(forced_weight, expected_weight), 1e-5);
  }
}

struct SharedShape {
  int64_t hidden, inner;
};
const SharedShape kShared[] = {{64, 64}, {96, 160}, {128, 17}, {160, 96}};

TEST_P(Stages, M07_SharedExpert) {
  Rng rng(42);
  for (const Format* format : all_formats()) {
    double sum = 0;
    int cases = 0;
    for (const SharedShape& s : kShared) {
      if (!has_width(*format, s.hidden) || !has_width(*format, s.inner)) continue;
      for (const auto& [order, factor] :
           {std::pair{RowOrder::kStackedGateUp, true},
            std::pair{RowOrder::kInterleavedGateUp, false}, std::pair{RowOrder::kPlain, false},
            std::pair{RowOrder::kPlain, true}}) {
        const bool gated = order != RowOrder::kPlain;
        RandomLinear up(rng, *format, Stage::kSharedUp, 0, (gated ? 2 : 1) * s.inner, s.hidden,
                        order, false);
        RandomLinear down(rng, *format, Stage::kSharedDown, 0, s.hidden, s.inner, RowOrder::kPlain,
                          false);
        RandomLinear gate(rng, kFormatBF16, Stage::kSharedGate, 0, 1, s.hidden, RowOrder::kPlain,
                          false);
        const auto up_adapters = adapters_for(rng, up.spec, kRanks),
                   down_adapters = adapters_for(rng, down.spec, {8, 1, 0, 2}),
                   gate_adapters = adapters_for(rng, gate.spec, {0, 4, 1, 0});
        constexpr int kTokens = 37;
        const auto x = rng.floats(kTokens * s.hidden), start = rng.floats(kTokens * s.hidden);
        auto batch = single_tokens(rng, kTokens, static_cast<int>(kRanks.size()));
        // `start` plus the layer's output for the first tokens.
        auto run = [&](Kernels& kernels, int tokens) {
          const Packed u(kernels, up, up_adapters), d(kernels, down, down_adapters),
              g(kernels, gate, gate_adapters);
          batch->batch.tokens = tokens;
          std::vector<float> out(start.begin(), start.begin() + tokens * s.hidden);
          kernels.shared_expert(batch->batch,
                                {.x = x.data(),
                                 .up = u.linear,
                                 .down = d.linear,
                                 .gate = factor ? g.linear : Linear{},
                                 .intermediate = static_cast<int>(s.inner),
                                 .activation = gated ? Activation::kSwiGlu : Activation::kRelu2,
                                 .residual = out.data()});
          return out;
        };
        const auto all = run(*kernels_, kTokens);
        const double off = distance(all, run(*reference_, kTokens));
        EXPECT_LT(off, tolerance_) << format->name << " " << s.hidden << " x " << s.inner;
        sum += off, ++cases;
        for (const int tokens : {1, 2, 13}) {
          const auto few = run(*kernels_, tokens);
          EXPECT_EQ(0, std::memcmp(few.data(), all.data(), few.size() * sizeof(float)))
              << format->name << ": other bits with " << tokens << " tokens";
        }
      }
    }
    EXPECT_LT(sum / cases, tolerance_ / 2) << format->name;
  }
}

TEST_P(Stages, Project) {
  Rng rng(43);
  for (const Format* format : all_formats()) {
    for (const auto& [out, in] : {std::pair{40, 96}, std::pair{257, 64}, std::pair{1, 32}}) {
      RandomLinear source(rng, *format, Stage::kLatentIn, 0, out, in, RowOrder::kPlain, true);
      const auto adapters = adapters_for(rng, source.spec, kRanks);
      constexpr int kTokens = 29;
      const auto x = rng.floats(kTokens * in);
      auto batch = single_tokens(rng, kTokens, static_cast<int>(kRanks.size()));
      auto run = [&](Kernels& kernels, int tokens) {
        const Packed packed(kernels, source, adapters);
        batch->batch.tokens = tokens;
        auto y = poisoned(int64_t{tokens} * out);
        kernels.project(batch->batch, {x.data(), packed.linear, y.data()});
        return y;
      };
      const auto all = run(*kernels_, kTokens), one = run(*kernels_, 1);
      EXPECT_LT(distance(all, run(*reference_, kTokens)), tolerance_) << format->name;
      EXPECT_EQ(0, std::memcmp(one.data(), all.data(), one.size() * sizeof(float)));
    }
  }
}

std::vector<const KernelsRow*> every_row() {
  std::vector<const KernelsRow*> rows;
  for (const KernelsRow& row : kernels_table()) rows.push_back(&row);
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Kernels, Stages, testing::ValuesIn(every_row()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace lk::test
