// The expert stage in every form of moe_backends, on every kernels row of this CPU: against plain
// loops that quantize alike, against plain loops that do not quantize, and the proof that adapters
// read unquantized activations at both seams.
#include <gtest/gtest.h>
#include <malloc.h>

#include <numeric>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa.h"
#include "kernels/moe_backends.h"
#include "kernels/reference/quantize.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/select.h"
#include "tests/kernels/op_case.h"

namespace lk::cpu {
extern const CpuIsa kIsaAvx512;
}

namespace lk::test {
namespace {

struct Row {
  std::string name;
  bool supported;
  std::unique_ptr<Kernels> (*make)(int threads);
};

std::vector<Row> rows() {
  std::vector<Row> rows;
  for (const KernelsRow& row : kernels_table()) {
    if (row.name == "reference") continue;
    rows.push_back({std::string(row.name), row.supported(), row.make});
    if (row.name == "avx512")
      rows.push_back({"avx512_without_vnni", row.supported(),
                      [](int threads) { return make_cpu_kernels(cpu::kIsaAvx512, threads); }});
  }
  return rows;
}

struct Shape {
  int experts, top_k;
  int64_t hidden, inner;
};
const Shape kShapes[] = {{8, 2, 64, 64}, {4, 4, 96, 32}, {16, 3, 160, 96}, {3, 1, 32, 17}};

bool has_width(const Format& format, int64_t in) {
  return format.scale == ScaleCodec::kNone || format.scale == ScaleCodec::kFloat ||
         in % format.group_cols == 0;
}

// Rows of moe_backends that compute differently from plain loops over unquantized activations.
std::vector<const MoeBackend*> backends_of(const Format& format, const std::string& kernels) {
  std::vector<const MoeBackend*> found;
  for (const MoeBackend& backend : moe_backends()) {
    // Without VNNI nothing else differs.
    if (kernels == "avx512_without_vnni" && backend.form.activations != ActivationForm::kInt8)
      continue;
    if (!same_device(backend, kernels)) continue;  // tests/cuda
    const auto& elements = backend.elements;
    if (std::find(elements.begin(), elements.end(), format.element) != elements.end())
      found.push_back(&backend);
  }
  return found;
}

// Against plain loops that do not quantize.
double tolerance(const MoeBackend& backend, const std::string& kernels) {
  if (kernels == "avx512bf16" && backend.form.activations == ActivationForm::kUnquantized)
    return 4.6e-3;
  if (backend.form.int8_weights) return 2.5e-2;
  switch (backend.form.activations) {
    case ActivationForm::kUnquantized:
      return 3e-3;
    case ActivationForm::kInt8:
      return 1.5e-2;
    case ActivationForm::kE4M3:
      return 5e-2;
  }
  return 0;
}

const std::vector<int> kUpRanks = {1, 0, 16, 3}, kDownRanks = {2, 0, 33, 4};

// One expert layer with its adapters, and routing for up to kTokens tokens.
struct Case {
  static constexpr int kTokens = 40;
  Shape shape;
  Activation activation;
  RandomLinear up, down;
  std::vector<std::unique_ptr<RandomLora>> up_adapters, down_adapters;
  std::vector<float> x, weight;
  std::vector<int32_t> expert;
  std::unique_ptr<Owned> batch;

  // Experts without a gate where `order` is kPlain.
  Case(Rng& rng, const Format& format, const Shape& s, RowOrder order, bool bias = true)
      : shape(s),
        activation(order == RowOrder::kPlain ? Activation::kRelu2 : Activation::kClampedSwiGlu),
        up(rng, format, Stage::kExpertUp, s.experts, (is_gated(activation) ? 2 : 1) * s.inner,
           s.hidden, order, bias),
        down(rng, format, Stage::kExpertDown, s.experts, s.hidden, s.inner, RowOrder::kPlain, bias),
        up_adapters(adapters_for(rng, up.spec, kUpRanks)),
        down_adapters(adapters_for(rng, down.spec, kDownRanks)),
        x(rng.floats(kTokens * s.hidden, 2.0f)),
        batch(single_tokens(rng, kTokens, static_cast<int>(kUpRanks.size()))) {
    for (int t = 0; t < kTokens; ++t) {
      std::vector<int> all(s.experts);
      std::iota(all.begin(), all.end(), 0);
      for (int k = 0; k < s.top_k; ++k) {
        // In the larger models expert 0 is left without any token.
        const int first = s.experts > 8 ? 1 : 0;
        const int at = first + rng.below(static_cast<int>(all.size()) - first);
        expert.push_back(all[at]);
        all.erase(all.begin() + at);
        weight.push_back(0.1f + 0.01f * static_cast<float>(rng.below(90)));
      }
    }
  }

  std::vector<float> run(Kernels& kernels, const ProductForm& form, int tokens) {
    const Packed packed_up(kernels, up, up_adapters, form);
    const Packed packed_down(kernels, down, down_adapters, form);
    batch->batch.tokens = tokens;
    std::vector<float> out(tokens * shape.hidden, 0.0f);
    kernels.experts(batch->batch, {.x = x.data(),
                                   .expert = expert.data(),
                                   .weight = weight.data(),
                                   .experts = shape.experts,
                                   .top_k = shape.top_k,
                                   .intermediate = static_cast<int>(shape.inner),
                                   .up = packed_up.linear,
                                   .down = packed_down.linear,
                                   .activation = activation,
                                   .alpha = 1.702f,
                                   .limit = 7.0f,
                                   .residual = out.data()});
    return out;
  }
};

class MoeForms : public testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    if (!GetParam().supported) GTEST_SKIP() << GetParam().name << " is only compiled on this CPU";
    // ops_test shows what several threads do; waiting for each other is most of their time here.
    fast_ = GetParam().make(1);
    reference_ = make_reference_kernels(1);
  }
  void agrees_with_plain_loops(bool gated);
  std::unique_ptr<Kernels> fast_, reference_;
};

void MoeForms::agrees_with_plain_loops(bool gated) {
  Rng rng(21);
  for (const Format* format : all_formats()) {
    for (const MoeBackend* backend : backends_of(*format, GetParam().name)) {
      double worst = 0, worst_alike = 0;
      for (const Shape& shape : kShapes) {
        if (!has_width(*format, shape.hidden) || !has_width(*format, shape.inner)) continue;
        const bool stacked = shape.hidden % 64 == 0;
        Case c(rng, *format, shape,
               !gated    ? RowOrder::kPlain
               : stacked ? RowOrder::kStackedGateUp
                         : RowOrder::kInterleavedGateUp);
        // Static scales take part where whole rows share one.
        for (auto& parts : c.up.stored.experts) parts[0].input_scale = 0.02f;
        ProductForm alike = backend->form;
        alike.plain_loops = false;
        const auto expected = c.run(*reference_, {}, Case::kTokens);
        const auto quantized = c.run(*reference_, alike, Case::kTokens);
        const auto got = c.run(*fast_, backend->form, Case::kTokens);
        worst = std::max(worst, distance(got, expected));
        worst_alike = std::max(worst_alike, distance(got, quantized));
        for (int tokens : {1, 17}) {
          const auto part = c.run(*fast_, backend->form, tokens);
          EXPECT_EQ(0, std::memcmp(part.data(), got.data(), part.size() * sizeof(float)))
              << backend->name << " " << format->name << ": other bits with " << tokens;
        }
      }
      EXPECT_LT(worst, tolerance(*backend, GetParam().name))
          << backend->name << " " << format->name;
      EXPECT_LT(worst_alike, GetParam().name == "avx512bf16" ? 4.6e-3 : 3e-3)
          << backend->name << " " << format->name;
      std::printf("%-20s %-14s %-14s %.2e of unquantized, %.2e of the same rounding\n",
                  GetParam().name.c_str(), std::string(backend->name).c_str(),
                  std::string(format->name).c_str(), worst, worst_alike);
    }
  }
}

TEST_P(MoeForms, AgreesWithPlainLoops) { agrees_with_plain_loops(true); }

TEST_P(MoeForms, L03_UngatedExpertsAgreeWithPlainLoops) { agrees_with_plain_loops(false); }

// With all codes and biases of the base zero the output is the adapters' alone: seam 1 reads x,
// seam 2 reads g, and neither may be rounded.
void adapter_alone(const Row& row, Kernels& fast, Kernels& reference, bool outliers,
                   RowOrder order = RowOrder::kInterleavedGateUp) {
  Rng rng(22);
  for (const Format* format : all_formats()) {
    if (!is_quantized(*format)) continue;
    for (const MoeBackend* backend : backends_of(*format, row.name)) {
      Case c(rng, *format, {4, 2, 128, 96}, order, false);
      for (RandomLinear* linear : {&c.up, &c.down})
        std::fill(linear->codes.begin(), linear->codes.end(), std::byte{0});
      if (outliers) {
        // Where A is zero an outlier changes nothing but what it does to its neighbours' rounding.
        for (size_t i = 0; i < c.x.size(); i += 16) c.x[i] *= 100.0f;
        for (auto& adapter : c.up_adapters) {
          for (size_t e = 0; adapter && e < adapter->a.size(); ++e) {
            for (size_t i = 0; i < adapter->a[e].size(); i += 16) adapter->a[e][i] = 0;
          }
        }
      }
      const auto expected = c.run(reference, {}, Case::kTokens);
      const auto got = c.run(fast, backend->form, Case::kTokens);
      EXPECT_LT(distance(got, expected), row.name == "avx512bf16" ? 3e-3 : 1e-5)
          << backend->name << " " << format->name;
    }
  }
}

TEST_P(MoeForms, AdaptersReadUnquantizedActivations) {
  adapter_alone(GetParam(), *fast_, *reference_, false);
  adapter_alone(GetParam(), *fast_, *reference_, false, RowOrder::kPlain);
}

TEST_P(MoeForms, OutliersOfTheBaseDoNotReachAdapters) {
  adapter_alone(GetParam(), *fast_, *reference_, true);
}

// Adapters in a batch change no bit of tokens without one.
TEST_P(MoeForms, BaseKeepsItsBitsBesideAdapters) {
  Rng rng(23);
  for (const Format* format : all_formats()) {
    if (!is_quantized(*format)) continue;
    for (const MoeBackend* backend : backends_of(*format, GetParam().name)) {
      Case c(rng, *format, {8, 2, 64, 96}, RowOrder::kStackedGateUp);
      const auto mixed = c.run(*fast_, backend->form, Case::kTokens);
      const std::vector<int32_t> adapters = c.batch->adapter;
      std::fill(c.batch->adapter.begin(), c.batch->adapter.end(), -1);
      c.up_adapters.clear();
      c.down_adapters.clear();
      const auto base = c.run(*fast_, backend->form, Case::kTokens);
      int without = 0;
      for (int t = 0; t < Case::kTokens; ++t) {
        if (adapters[t] >= 0) continue;
        ++without;
        EXPECT_EQ(0, std::memcmp(&mixed[t * c.shape.hidden], &base[t * c.shape.hidden],
                                 c.shape.hidden * sizeof(float)))
            << backend->name << " " << format->name << " token " << t;
      }
      EXPECT_GT(without, 0);
    }
  }
}

// Expert widths that no tile divides, in memory that held something else (what malloc gives out,
// and the kernels' own, after a larger layer without a number in it): three times the same bits,
// all of them numbers.
TEST_P(MoeForms, L05_L06_L07_OddWidthsInDirtyMemory) {
  for (const Format* format : all_formats()) {
    if (!is_quantized(*format)) continue;
    for (const MoeBackend* backend : backends_of(*format, GetParam().name)) {
      Rng rng(25);
      Case dirt(rng, *format, {3, 2, 160, 512}, RowOrder::kInterleavedGateUp);
      std::fill(dirt.x.begin(), dirt.x.end(), std::nanf(""));
      double worst = 0;
      for (const int64_t inner : {96, 160, 192, 320, 352, 360}) {
        if (!has_width(*format, inner)) continue;
        Case c(rng, *format, {3, 2, 96, inner}, RowOrder::kInterleavedGateUp);
        constexpr int kFew = 9;
        ProductForm alike = backend->form;
        alike.plain_loops = false;
        const auto expected = c.run(*reference_, alike, kFew);
        std::vector<float> first;
        for (int time = 0; time < 3; ++time) {
          mallopt(M_PERTURB, 0x80 + time);
          if (time > 0) dirt.run(*fast_, backend->form, Case::kTokens);
          const auto got = c.run(*fast_, backend->form, kFew);
          mallopt(M_PERTURB, 0);
          for (const float value : got) ASSERT_TRUE(std::isfinite(value)) << format->name;
          if (time == 0) first = got;
          EXPECT_EQ(0, std::memcmp(got.data(), first.data(), got.size() * sizeof(float)))
              << backend->name << " " << format->name << " width " << inner;
        }
        worst = std::max(worst, distance(first, expected));
      }
      EXPECT_LT(worst, GetParam().name == "avx512bf16" ? 4.6e-3 : 3e-3)
          << backend->name << " " << format->name;
    }
  }
}

// Biases far larger than the products reach both seams, each once, and the routing weight is on
// those of the second.
TEST_P(MoeForms, L08_LargeBiasesOfExperts) {
  for (const Format* format : all_formats()) {
    if (!is_quantized(*format)) continue;
    for (const MoeBackend* backend : backends_of(*format, GetParam().name)) {
      Rng rng(26);
      Case c(rng, *format, {4, 2, 96, 96}, RowOrder::kStackedGateUp);
      for (RandomLinear* linear : {&c.up, &c.down}) {
        for (uint16_t& bias : linear->bias) bias = f32_to_bf16(10 * bf16_to_f32(bias));
      }
      const auto expected = c.run(*reference_, {}, Case::kTokens);
      const auto with = c.run(*fast_, backend->form, Case::kTokens);
      EXPECT_LT(distance(with, expected), tolerance(*backend, GetParam().name))
          << backend->name << " " << format->name;
      for (RandomLinear* linear : {&c.up, &c.down}) {
        const std::vector<uint16_t> kept = linear->bias;
        std::fill(linear->bias.begin(), linear->bias.end(), uint16_t{0});
        const auto without = c.run(*fast_, backend->form, Case::kTokens);
        EXPECT_GT(distance(without, expected), 0.1) << backend->name << " " << format->name;
        linear->bias = kept;
      }
    }
  }
}

// A value that is no number must not become one by rounding.
TEST_P(MoeForms, NanStaysNan) {
  Rng rng(24);
  for (const Format* format : all_formats()) {
    if (!is_quantized(*format)) continue;
    for (const MoeBackend* backend : backends_of(*format, GetParam().name)) {
      for (const RowOrder order : {RowOrder::kInterleavedGateUp, RowOrder::kPlain}) {
        Case c(rng, *format, {4, 2, 64, 96}, order);
        c.x[5] = std::nanf("");
        const auto got = c.run(*fast_, backend->form, 2);
        EXPECT_TRUE(std::isnan(got[0])) << backend->name << " " << format->name;
        EXPECT_FALSE(std::isnan(got[c.shape.hidden])) << backend->name << " " << format->name;
      }
    }
  }
}

// The largest of a group is rounded like any other, wherever between two powers of two it lies. The
// plain loops' word counts: AgreesWithPlainLoops compares with them.
TEST(E4m3Activations, NothingIsCut) {
  for (const Format* format : all_formats()) {
    if (format->element != Element::kE4M3) continue;
    for (int step = 0; step <= 64; ++step) {
      std::vector<float> x(128, 0.3f);
      const float largest = 3.0f * (1.0f + static_cast<float>(step) / 64.0f);
      x[5] = largest;
      reference::quantize_activations(ActivationForm::kE4M3, *format, 0, 128, x.data());
      EXPECT_NEAR(x[5], largest, largest / 16) << format->name;
      EXPECT_NEAR(x[6], 0.3f, 0.3f / 16) << format->name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, MoeForms, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lk::test
