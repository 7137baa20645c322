// Expert layers whose activations are rounded to E4M3 on the GPU: against plain loops that round
// alike and that do not, and what adapters see of the rounding.
#include <gtest/gtest.h>

#include "tests/cuda/linear_cases.h"

namespace lk::test {
namespace {

constexpr ProductForm kForm{.activations = ActivationForm::kE4M3};

std::vector<const Format*> formats() {
  std::vector<const Format*> found;
  for (const Format* format : all_formats()) {
    if (format->element == Element::kE4M3) found.push_back(format);
  }
  return found;
}

// A code that falls on the other side of a tie is much of a few outputs, and so is what rounding
// does to one token: 5.1e-2 between the plain loops alone, at 1,088 channels of mxfp8.
double alike_tolerance(size_t outputs) { return 5e-3 * (outputs < 1000 ? 3 : 1); }
double plain_tolerance(size_t outputs) { return 5e-2 * (outputs < 2500 ? 3 : 1); }

struct Distances {
  double alike = 0, plain = 0;
};

// Both kinds of product (few rows of an expert, many), padding tokens, dirty scratch memory.
void check(ExpertCase& c, Distances& worst) {
  const auto alike = c.reference(kForm), plain = c.reference();
  for (int tokens : cases({310, 150, 40, 9, 2, 1}, {310, 9, 1})) {
    const auto got = c.run(tokens, 7, true);
    const double from_alike = distance(got, rows_of(alike, tokens, c.s.hidden));
    const double from_plain = distance(got, rows_of(plain, tokens, c.s.hidden));
    const std::string what = std::string(c.format.name) + " hidden " + std::to_string(c.s.hidden) +
                             " inner " + std::to_string(c.s.inner) + " order " +
                             std::to_string(int(c.order)) + " tokens " + std::to_string(tokens);
    EXPECT_LT(from_alike, alike_tolerance(got.size())) << what;
    EXPECT_LT(from_plain, plain_tolerance(got.size())) << what;
    if (got.size() >= 2500) {
      worst.alike = std::max(worst.alike, from_alike);
      worst.plain = std::max(worst.plain, from_plain);
    }
    EXPECT_EQ(got, c.run(tokens, 7, true)) << "other bits the second time: " << what;
    expect_base_rows(*c.batch, tokens, c.s.hidden, got, c.run(tokens, 7, false));
  }
}

// Groups that end early, rows of an odd number of tiles, experts without a token, outputs that no
// tile divides.
const auto kShapes = cases<ExpertShape>({{8, 2, 64, 64},
                                         {4, 4, 96, 32},
                                         {16, 3, 160, 40},
                                         {3, 1, 32, 17},
                                         {200, 6, 64, 32},
                                         {5, 2, 320, 288},
                                         {4, 1, 1088, 416},
                                         {8, 3, 256, 128}},
                                        {{4, 4, 96, 32}, {3, 1, 32, 17}, {5, 2, 320, 288}});

TEST(CudaE4m3, ExpertsAgreeWithPlainLoops) {
  Rng rng(31);
  for (const Format* format : formats()) {
    Distances worst;
    for (const ExpertShape& s : kShapes) {
      if (!has_width(*format, s.inner) || !has_width(*format, s.hidden)) continue;
      const auto run_case = [&](Activation activation, RowOrder order) {
        ExpertCase c(rng, *format, s, activation, order, {}, kForm);
        check(c, worst);
      };
      run_case(Activation::kClampedSwiGlu, RowOrder::kInterleavedGateUp);
      run_case(Activation::kSwiGlu, RowOrder::kStackedGateUp);
      run_case(Activation::kRelu2, RowOrder::kPlain);
    }
    std::printf("%-14s %.2e of the same rounding, %.2e of unquantized\n",
                std::string(format->name).c_str(), worst.alike, worst.plain);
  }
}

// So many entries that adapters' first products are computed for eight rows at a time.
TEST(CudaE4m3, ManyEntries) {
  Rng rng(32);
  for (const Format* format : formats()) {
    ExpertCase c(rng, *format, {32, 16, 160, 96}, Activation::kSwiGlu, RowOrder::kStackedGateUp, {},
                 kForm);
    Distances worst;
    check(c, worst);
  }
}

// Not with the clamped activation: codes so large meet its limits, whose ratio lies at a tie of
// E4M3.
TEST(CudaE4m3, EveryCodeOfWeights) {
  Rng rng(33);
  for (const Format* format : formats()) {
    ExpertCase c(
        rng, *format, {4, 2, 256, 64}, Activation::kSwiGlu, RowOrder::kStackedGateUp,
        [&](RandomLinear& linear) { put_every_code(linear, *format); }, kForm);
    const auto alike = c.reference(kForm);
    for (int tokens : {310, 9}) {
      EXPECT_LT(distance(c.run(tokens, 0, true), rows_of(alike, tokens, c.s.hidden)), 5e-3)
          << format->name << " tokens " << tokens;
    }
  }
}

// Whole rows may have a scale from the file, which every expert has for itself, or not.
TEST(CudaE4m3, ScalesFromTheFile) {
  Rng rng(34);
  for (const Format* format : formats()) {
    if (format->group_cols != 0) continue;
    const auto set = [](RandomLinear& linear) {
      for (size_t e = 1; e < linear.stored.experts.size(); ++e)
        linear.stored.experts[e][0].input_scale = 0.004f * static_cast<float>(e);
    };
    ExpertCase c(rng, *format, {9, 3, 160, 72}, Activation::kSwiGlu, RowOrder::kStackedGateUp, set,
                 kForm);
    const auto alike = c.reference(kForm);
    EXPECT_GT(distance(alike, c.reference()), 1e-3) << "scales from the file do nothing";
    for (int tokens : {310, 40, 1}) {
      const auto got = c.run(tokens, 7, true);
      EXPECT_LT(distance(got, rows_of(alike, tokens, c.s.hidden)), alike_tolerance(got.size()))
          << format->name << " tokens " << tokens;
      expect_base_rows(*c.batch, tokens, c.s.hidden, got, c.run(tokens, 7, false));
    }
  }
}

// With weights and biases of zero the output is the adapters' alone: neither x nor g may be rounded
// for them, and an outlier where A is zero must not reach its neighbours.
TEST(CudaE4m3, AdapterAlone) {
  Rng rng(35);
  const auto clear = [](RandomLinear& linear) {
    std::fill(linear.codes.begin(), linear.codes.end(), std::byte{0});
    std::fill(linear.bias.begin(), linear.bias.end(), uint16_t{0});
  };
  for (const Format* format : formats()) {
    for (const ExpertShape& s : {ExpertShape{4, 2, 128, 96}, ExpertShape{32, 16, 160, 64}}) {
      for (const bool outliers : {false, true}) {
        ExpertCase c(rng, *format, s, Activation::kSwiGlu, RowOrder::kStackedGateUp, clear, kForm);
        if (outliers) {
          for (size_t i = 0; i < c.x.size(); i += 16) c.x[i] *= 1000.0f;
          for (const auto& adapter : c.up2.adapters) {
            for (size_t e = 0; adapter && e < adapter->a.size(); ++e) {
              for (size_t i = 0; i < adapter->a[e].size(); i += 16) adapter->a[e][i] = 0;
            }
          }
          c.up2.pack_adapters(c.up.spec);
        }
        const auto wanted = c.reference();
        for (int tokens : {310, 20}) {
          EXPECT_LT(distance(c.run(tokens, 0, true), rows_of(wanted, tokens, s.hidden)), 1e-3)
              << format->name << " tokens " << tokens << " outliers " << outliers;
        }
      }
    }
  }
}

// Of a token, and of no other.
TEST(CudaE4m3, NanStaysNan) {
  Rng rng(36);
  for (const Format* format : formats()) {
    for (const RowOrder order : {RowOrder::kInterleavedGateUp, RowOrder::kPlain}) {
      ExpertCase c(rng, *format, {4, 2, 64, 96},
                   order == RowOrder::kPlain ? Activation::kRelu2 : Activation::kClampedSwiGlu,
                   order, {}, kForm);
      c.x[5] = std::nanf("");
      c.x[64 * 2 + 7] = std::numeric_limits<float>::infinity();
      for (int tokens : {3, 300}) {
        const auto got = c.run(tokens, 0, true);
        for (int t = 0; t < tokens; ++t) {
          ASSERT_EQ(t == 0 || t == 2, std::isnan(got[t * 64]))
              << format->name << " token " << t << " of " << tokens;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lk::test
