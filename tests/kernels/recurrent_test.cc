// The recurrent mixers of every kernels row that this CPU supports against the reference: ragged
// batches, scattered state slots, adapters; the same bits wherever a prompt is cut and in any
// company; and the plain loops against the closed form of the recurrence.
#include <gtest/gtest.h>

#include <functional>

#include "kernels/reference/reference_kernels.h"
#include "kernels/select.h"
#include "tests/kernels/op_case.h"

namespace lk::test {
namespace {

// Rank 0: an adapter that leaves the linear alone.
const std::vector<int> kRanks = {1, 0, 8}, kOtherRanks = {8, 1, 0};

struct Shape {
  int64_t hidden;
  int key_heads, key_dim, value_heads, value_dim, kernel;
};
const Shape kShapes[] = {{64, 2, 32, 4, 64, 4}, {96, 1, 128, 2, 128, 4}, {32, 3, 24, 3, 40, 2},
                         {64, 2, 7, 6, 9, 3},   {64, 1, 128, 1, 72, 4},  {32, 2, 33, 2, 130, 3},
                         {64, 2, 16, 2, 48, 1}};
constexpr int kSlots = 7;

// One recurrent layer of either kind: keys are DeltaNet's key heads or Mamba's groups.
struct Layer {
  Shape shape;
  std::vector<std::unique_ptr<RandomLinear>> linears;
  std::vector<std::vector<std::unique_ptr<RandomLora>>> adapters;
  std::vector<float> norm, conv, conv_bias, a_log, dt_bias, d, out_norm;
  int64_t channels, width;
  bool mamba;

  Layer(Rng& rng, const Shape& s, bool mamba, const Format& format)
      : shape(s),
        norm(rng.floats(s.hidden)),
        channels(2 * s.key_heads * s.key_dim + int64_t{s.value_heads} * s.value_dim),
        width(int64_t{s.value_heads} * s.value_dim),
        mamba(mamba) {
    auto add = [&](const Format& f, int64_t out, const std::vector<int>& ranks) {
      linears.push_back(std::make_unique<RandomLinear>(rng, f, Stage::kRecurrentIn, 0, out,
                                                       s.hidden, RowOrder::kPlain, false));
      adapters.push_back(adapters_for(rng, linears.back()->spec, ranks));
    };
    if (mamba) {
      add(format, width + channels + s.value_heads, kRanks);
    } else {
      add(format, channels, kRanks);
      add(format, width, kOtherRanks);
      add(kFormatBF16, s.value_heads, kRanks);
      add(kFormatBF16, s.value_heads, kOtherRanks);
    }
    conv = rng.floats(s.kernel * channels, 0.5f);
    conv_bias = rng.floats(channels, 0.2f);
    a_log = rng.floats(s.value_heads);
    dt_bias = rng.floats(s.value_heads);
    d = rng.floats(s.value_heads);
    out_norm = rng.floats(mamba ? width : s.value_dim);
  }

  struct State {
    std::vector<float> conv, state;
    StateLayer layer;
  };
  // Slots hold what is no number until a sequence has written them.
  std::unique_ptr<State> state() const {
    auto s = std::make_unique<State>();
    s->conv = poisoned(kSlots * (shape.kernel - 1) * channels);
    s->state = poisoned(kSlots * width * shape.key_dim);
    s->layer = {s->conv.data(), s->state.data()};
    return s;
  }

  using Run = std::function<void(const Batch&, const float* residual, StateLayer, float* out)>;
  Run packed_for(Kernels& kernels) const {
    auto packed = std::make_shared<std::vector<std::unique_ptr<Packed>>>();
    for (size_t i = 0; i < linears.size(); ++i)
      packed->push_back(std::make_unique<Packed>(kernels, *linears[i], adapters[i]));
    return [this, packed, &kernels](const Batch& batch, const float* residual, StateLayer state,
                                    float* out) {
      const auto& p = *packed;
      if (mamba) {
        kernels.mamba(batch, {.residual = residual,
                              .norm = {norm.data(), 1e-5f},
                              .in = p[0]->linear,
                              .kernel = shape.kernel,
                              .conv = conv.data(),
                              .conv_bias = shape.kernel == 3 ? nullptr : conv_bias.data(),
                              .a_log = a_log.data(),
                              .d = d.data(),
                              .dt_bias = dt_bias.data(),
                              .out_norm = {out_norm.data(), 1e-5f},
                              .heads = shape.value_heads,
                              .head_dim = shape.value_dim,
                              .groups = shape.key_heads,
                              .state_dim = shape.key_dim,
                              .dt_min = shape.kernel == 2 ? 0.3f : 0.0f,
                              .dt_max = shape.kernel == 2 ? 1.1f : INFINITY,
                              .state = state,
                              .out = out});
      } else {
        kernels.delta_net(batch, {.residual = residual,
                                  .norm = {norm.data(), 1e-6f},
                                  .qkv = p[0]->linear,
                                  .z = p[1]->linear,
                                  .a = p[2]->linear,
                                  .b = p[3]->linear,
                                  .kernel = shape.kernel,
                                  .conv = conv.data(),
                                  .a_log = a_log.data(),
                                  .dt_bias = dt_bias.data(),
                                  .out_norm = {out_norm.data(), 1e-6f},
                                  .key_heads = shape.key_heads,
                                  .key_dim = shape.key_dim,
                                  .value_heads = shape.value_heads,
                                  .value_dim = shape.value_dim,
                                  .state = state,
                                  .out = out});
      }
    };
  }
};

struct Sequence {
  std::vector<float> residual;  // [length, hidden]
  int slot, adapter;
};

std::vector<Sequence> random_sequences(Rng& rng, const std::vector<int>& lengths, int64_t hidden) {
  const int slots[kSlots] = {4, 1, 6, 0, 3, 5, 2};
  std::vector<Sequence> sequences;
  for (size_t s = 0; s < lengths.size(); ++s)
    sequences.push_back({rng.floats(lengths[s] * hidden), slots[s], static_cast<int>(s) % 4 - 1});
  return sequences;
}

// Outputs by sequence, then what is left in the slots.
struct Result {
  std::vector<std::vector<float>> out;
  std::unique_ptr<Layer::State> state;
};

// steps: tokens of each sequence in each step.
Result run(const Layer& layer, const Layer::Run& call, const std::vector<Sequence>& sequences,
           const std::vector<std::vector<int>>& steps) {
  const int64_t hidden = layer.shape.hidden;
  Result result{std::vector<std::vector<float>>(sequences.size()), layer.state()};
  std::vector<int> done(sequences.size(), 0);
  for (const std::vector<int>& step : steps) {
    Owned o;
    std::vector<int32_t> slots;
    std::vector<float> residual;
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (step[s] == 0) continue;
      const Sequence& q = sequences[s];
      o.query_start.push_back(static_cast<int>(o.ids.size()));
      for (int i = 0; i < step[s]; ++i) {
        o.ids.push_back(0);
        o.positions.push_back(done[s] + i);
        o.adapter.push_back(q.adapter);
        o.sequence.push_back(static_cast<int>(slots.size()));
      }
      residual.insert(residual.end(), q.residual.begin() + done[s] * hidden,
                      q.residual.begin() + (done[s] + step[s]) * hidden);
      o.context_len.push_back(done[s] + step[s]);
      slots.push_back(q.slot);
    }
    o.query_start.push_back(static_cast<int>(o.ids.size()));
    o.finish(0);
    o.batch.state_slot = slots.data();
    std::vector<float> out = poisoned(o.batch.tokens * layer.width);
    call(o.batch, residual.data(), result.state->layer, out.data());
    auto from = out.begin();
    for (size_t s = 0; s < sequences.size(); ++s) {
      result.out[s].insert(result.out[s].end(), from, from + step[s] * layer.width);
      from += step[s] * layer.width;
      done[s] += step[s];
    }
  }
  return result;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<float> slot_of(const std::vector<float>& all, int slot) {
  const size_t each = all.size() / kSlots;
  return {all.begin() + slot * each, all.begin() + (slot + 1) * each};
}

class Recurrent : public testing::TestWithParam<std::tuple<const KernelsRow*, bool>> {
 protected:
  void SetUp() override {
    const KernelsRow& row = *std::get<0>(GetParam());
    if (!row.supported()) GTEST_SKIP() << row.name << " is only compiled on this CPU";
    fast_ = row.make(2);
    reference_ = make_reference_kernels(2);
    // Pair products round the projections' activations to bfloat16, and the norm of a head whose
    // output nearly cancels makes that large.
    tolerance_ = row.name == "avx512bf16" ? 6e-2 : 1e-5;
    mean_tolerance_ = row.name == "avx512bf16" ? 6e-3 : 1e-5;
  }
  bool mamba() const { return std::get<1>(GetParam()); }

  std::unique_ptr<Kernels> fast_, reference_;
  double tolerance_ = 0, mean_tolerance_ = 0;
};

// Prefill, continued prefill and decode of several sequences in one ragged batch.
TEST_P(Recurrent, AgreesWithPlainLoops) {
  Rng rng(31);
  for (const Format* format : {&kFormatBF16, &kFormatF32, &kFormatFp8Block, &kFormatNvfp4}) {
    double sum = 0;
    int cases = 0;
    for (const Shape& shape : kShapes) {
      const Layer layer(rng, shape, mamba(), *format);
      const std::vector<int> lengths = {1, 5, 19, 41, 2};
      const auto sequences = random_sequences(rng, lengths, shape.hidden);
      const std::vector<std::vector<int>> steps = {
          {0, 2, 19, 1, 0}, {1, 1, 0, 30, 1}, {0, 1, 0, 9, 1}, {0, 1, 0, 1, 0}};
      const Result expected = run(layer, layer.packed_for(*reference_), sequences, {lengths});
      const auto call = layer.packed_for(*fast_);
      const Result once = run(layer, call, sequences, {lengths});
      const Result pieces = run(layer, call, sequences, steps);
      const std::string where = std::string(format->name) + " dims " +
                                std::to_string(shape.key_dim) + "x" +
                                std::to_string(shape.value_dim);
      for (size_t s = 0; s < lengths.size(); ++s) {
        SCOPED_TRACE(where + " length " + std::to_string(lengths[s]));
        const double off = distance(once.out[s], expected.out[s]);
        EXPECT_LT(off, tolerance_);
        sum += off, ++cases;
        EXPECT_TRUE(same_bits(once.out[s], pieces.out[s])) << "other bits in pieces";
        const int slot = sequences[s].slot;
        for (const auto part : {&Layer::State::conv, &Layer::State::state}) {
          const auto got = slot_of((*once.state).*part, slot);
          EXPECT_LT(distance(got, slot_of((*expected.state).*part, slot)), tolerance_);
          EXPECT_TRUE(same_bits(got, slot_of((*pieces.state).*part, slot)));
        }
      }
      // Nobody touched the other slots.
      for (const int slot : {5, 2}) {
        for (float value : slot_of(once.state->state, slot)) ASSERT_TRUE(std::isnan(value));
        for (float value : slot_of(once.state->conv, slot)) ASSERT_TRUE(std::isnan(value));
      }
    }
    EXPECT_LT(sum / cases, mean_tolerance_) << format->name;
  }
}

TEST_P(Recurrent, PromptsCutAnywhereHaveTheSameBits) {
  Rng rng(32);
  for (const Shape& shape : kShapes) {
    const Layer layer(rng, shape, mamba(), kFormatBF16);
    constexpr int kLength = 14;
    const auto sequences = random_sequences(rng, {kLength}, shape.hidden);
    for (Kernels* kernels : {fast_.get(), reference_.get()}) {
      const auto call = layer.packed_for(*kernels);
      const Result whole = run(layer, call, sequences, {{kLength}});
      for (int cut = 1; cut < kLength; ++cut) {
        const Result parts = run(layer, call, sequences, {{cut}, {kLength - cut}});
        EXPECT_TRUE(same_bits(parts.out[0], whole.out[0])) << kernels->name() << " " << cut;
        EXPECT_TRUE(same_bits(slot_of(parts.state->state, 4), slot_of(whole.state->state, 4)));
        EXPECT_TRUE(same_bits(slot_of(parts.state->conv, 4), slot_of(whole.state->conv, 4)));
      }
      const Result steps = run(layer, call, sequences, std::vector<std::vector<int>>(kLength, {1}));
      EXPECT_TRUE(same_bits(steps.out[0], whole.out[0])) << kernels->name() << " one by one";
    }
  }
}

TEST_P(Recurrent, CompanyAndThreadsDoNotMatter) {
  Rng rng(33);
  for (const Shape& shape : kShapes) {
    const Layer layer(rng, shape, mamba(), kFormatBF16);
    const std::vector<int> lengths = {3, 11, 1, 6, 30};
    const auto sequences = random_sequences(rng, lengths, shape.hidden);
    const Result together = run(layer, layer.packed_for(*fast_), sequences, {lengths});
    for (int threads : {1, 3}) {
      const auto kernels = std::get<0>(GetParam())->make(threads);
      const auto call = layer.packed_for(*kernels);
      for (size_t s = 0; s < lengths.size(); ++s) {
        const Result alone = run(layer, call, {sequences[s]}, {{lengths[s]}});
        EXPECT_TRUE(same_bits(alone.out[0], together.out[s])) << "length " << lengths[s];
      }
    }
  }
}

// A sequence that begins in a slot which another one left gives what it gives in a clean one.
TEST_P(Recurrent, FreshSequencesDoNotReadTheSlot) {
  Rng rng(34);
  const Layer layer(rng, kShapes[0], mamba(), kFormatBF16);
  auto sequences = random_sequences(rng, {9, 2}, kShapes[0].hidden);
  const auto call = layer.packed_for(*fast_);
  const Result apart = run(layer, call, sequences, {{9, 2}});
  sequences[1].slot = sequences[0].slot;
  const Result reused = run(layer, call, sequences, {{9, 0}, {0, 2}});
  EXPECT_TRUE(same_bits(reused.out[1], apart.out[1]));
}

// The plain loops against closed forms, in double precision: Mamba-2 is causal attention without a
// softmax, y_t = sum_j exp(L_t - L_j) (C_t . B_j) dt_j x_j + D x_t with L the running sum of
// -exp(a_log) dt; what DeltaNet writes solves a triangular system, w_t = beta_t (v_t - sum_{j<t}
// exp(L_t - L_j) (k_t . k_j) w_j), and o_t = sum_{j<=t} exp(L_t - L_j) (q_t . k_j) w_j.
TEST(RecurrentReference, AgreesWithTheClosedForm) {
  constexpr int kLength = 23;
  for (const bool mamba : {false, true}) {
    Rng rng(35);
    // One head of each kind, a convolution of the token alone.
    const Shape shape{16, 1, 6, 1, 5, 1};
    Layer layer(rng, shape, mamba, kFormatF32);
    const auto kernels = make_reference_kernels(1);
    auto sequences = random_sequences(rng, {kLength}, shape.hidden);
    const Result got = run(layer, layer.packed_for(*kernels), sequences, {{kLength}});

    auto project = [&](int linear, int t) {
      const RandomLinear& source = *layer.linears[linear];
      const float* x = &sequences[0].residual[t * shape.hidden];
      double square = 0;
      for (int i = 0; i < shape.hidden; ++i) square += double{x[i]} * x[i];
      const double scale = 1 / std::sqrt(square / shape.hidden + (mamba ? 1e-5 : 1e-6));
      std::vector<double> y(source.spec.out, 0.0);
      std::vector<float> w(shape.hidden);
      for (int64_t o = 0; o < source.spec.out; ++o) {
        decode_row(*source.stored.format, source.stored.experts[0][0], o, w.data());
        for (int i = 0; i < shape.hidden; ++i) y[o] += scale * x[i] * layer.norm[i] * w[i];
      }
      return y;
    };
    auto silu = [](double x) { return x / (1 + std::exp(-x)); };
    const int n = shape.key_dim, m = shape.value_dim;
    // Of each token: what is written (key, value) and read (query), the decay's logarithm summed
    // up.
    std::vector<std::vector<double>> key, query, value, gate;
    std::vector<double> gain, level;
    for (int t = 0; t < kLength; ++t) {
      const std::vector<double> all = project(0, t);
      const int u = mamba ? m : 0;  // where the convolution's channels begin
      std::vector<double> c(layer.channels);
      for (int i = 0; i < layer.channels; ++i)
        c[i] = silu(layer.conv[i] * all[u + i] + (mamba ? layer.conv_bias[i] : 0.0f));
      const int first[3] = {mamba ? m + n : 0, mamba ? m : n, mamba ? 0 : 2 * n};  // q, k, v
      query.emplace_back(&c[first[0]], &c[first[0]] + n);
      key.emplace_back(&c[first[1]], &c[first[1]] + n);
      value.emplace_back(&c[first[2]], &c[first[2]] + m);
      gate.push_back(mamba ? std::vector<double>(all.begin(), all.begin() + m) : project(1, t));
      const double rate = mamba ? all[u + layer.channels] : project(2, t)[0];
      const double dt = std::log1p(std::exp(rate + layer.dt_bias[0]));
      gain.push_back(mamba ? dt : 1 / (1 + std::exp(-project(3, t)[0])));
      level.push_back((t ? level.back() : 0) - std::exp(double{layer.a_log[0]}) * dt);
      for (auto* unit : {&query.back(), &key.back()}) {
        double square = 1e-6;
        for (double v : *unit) square += v * v;
        for (double& v : *unit) v /= mamba ? 1 : std::sqrt(square);
      }
      for (double& v : query.back()) v /= mamba ? 1 : std::sqrt(n);
    }
    auto dot = [&](const std::vector<double>& a, const std::vector<double>& b) {
      double sum = 0;
      for (int i = 0; i < n; ++i) sum += a[i] * b[i];
      return sum;
    };
    std::vector<std::vector<double>> written;
    std::vector<float> expected;
    for (int t = 0; t < kLength; ++t) {
      std::vector<double> w = value[t], o(m, 0.0);
      for (int j = 0; j < t && !mamba; ++j) {
        for (int i = 0; i < m; ++i)
          w[i] -= std::exp(level[t] - level[j]) * dot(key[t], key[j]) * written[j][i];
      }
      for (double& v : w) v *= gain[t];
      written.push_back(w);
      for (int j = 0; j <= t; ++j) {
        for (int i = 0; i < m; ++i)
          o[i] += std::exp(level[t] - level[j]) * dot(query[t], key[j]) * written[j][i];
      }
      double square = 0;
      for (int i = 0; i < m; ++i) {
        if (mamba) o[i] = (o[i] + layer.d[0] * value[t][i]) * silu(gate[t][i]);
        square += o[i] * o[i];
      }
      for (int i = 0; i < m; ++i) {
        const double normed =
            o[i] / std::sqrt(square / m + (mamba ? 1e-5 : 1e-6)) * layer.out_norm[i];
        expected.push_back(static_cast<float>(mamba ? normed : normed * silu(gate[t][i])));
      }
    }
    EXPECT_LT(distance(got.out[0], expected), 1e-5) << (mamba ? "mamba" : "delta_net");
  }
}

std::vector<const KernelsRow*> fast_rows() {
  std::vector<const KernelsRow*> rows;
  for (const KernelsRow& row : kernels_table()) {
    if (row.name != "reference") rows.push_back(&row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Kernels, Recurrent,
                         testing::Combine(testing::ValuesIn(fast_rows()), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)->name) +
                                  (std::get<1>(info.param) ? "_mamba" : "_delta_net");
                         });

}  // namespace
}  // namespace lk::test
