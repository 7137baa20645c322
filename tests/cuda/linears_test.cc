// The GPU's products against the reference, over formats, shapes, ranks and mixes; and the bits of
// rows without an adapter.
#include "kernels/cuda/linears.h"

#include <gtest/gtest.h>

#include "tests/cuda/linear_cases.h"

namespace lk::test {
namespace {

// Activations are rounded to bfloat16, and so are weights of wider elements; a few outputs that
// nearly cancel may be further off than many are together.
double tolerance(const Format& format, size_t outputs) {
  const bool wider = format.element == Element::kF32 || format.element == Element::kF16;
  return (wider ? 8e-3 : 5e-3) * (outputs < 1000 ? 3 : 1);
}
struct DenseShape {
  int64_t out, in;
};
const auto kDense = cases<DenseShape>({{16, 32},
                                       {1, 32},
                                       {40, 96},
                                       {130, 72},
                                       {257, 192},
                                       {33, 1},
                                       {64, 200},
                                       {48, 80},
                                       {150, 304},
                                       {72, 640}},
                                      {{1, 32}, {130, 72}, {257, 192}});
const auto kTokens = cases<int>({1, 2, 7, 9, 20, 33, 200, 300, 1100}, {1, 9, 33, 300});
constexpr int kMost = 1100;

// Distance of values of the order 1, of which the only one may be next to nothing.
double dense_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double norm = 0;
  for (float v : b) norm += double{v} * v;
  const double size = static_cast<double>(b.size());
  return distance(a, b) * std::min(1.0, std::sqrt(norm / size));
}

TEST(CudaLinears, DenseWithAdapters) {
  Rng rng(1);
  for (const Format* format : all_formats()) {
    for (const DenseShape& shape : kDense) {
      if (!has_width(*format, shape.in)) continue;
      SCOPED_TRACE(std::string(format->name) + " " + std::to_string(shape.out) + "x" +
                   std::to_string(shape.in));
      RandomLinear source(rng, *format, Stage::kAttentionOut, 0, shape.out, shape.in,
                          RowOrder::kPlain, true);
      Both both(source, adapters_for(rng, source.spec, kRanks));
      const auto x = rng.floats(kMost * shape.in), residual = rng.floats(kMost * shape.out);
      auto batch = single_tokens(rng, kMost, int(kRanks.size()));
      std::vector<float> expected = residual;
      both.kernels->output(batch->batch, {x.data(), both.reference.linear, expected.data()});
      OnDevice kept;
      Batch on_gpu = kept.put(batch->batch);
      const float* x_gpu = kept.put(x);
      for (int tokens : kTokens) {
        on_gpu.tokens = tokens;
        const int64_t count = tokens * shape.out;
        const auto run = [&](const Linear& linear) {
          float* out = kept.put(rows_of(residual, tokens, shape.out));
          cuda::run_linear(
              context(), on_gpu, linear,
              {.x = x_gpu, .rows = tokens, .out = out, .out_stride = shape.out, .add = true});
          return OnDevice::get(out, count);
        };
        const auto got = run(both.linear);
        EXPECT_LT(dense_distance(got, rows_of(expected, tokens, shape.out)),
                  tolerance(*format, got.size()))
            << "tokens " << tokens;
        EXPECT_EQ(got, run(both.linear)) << "other bits the second time";
        expect_base_rows(*batch, tokens, shape.out, got, run(both.without));
      }
    }
  }
}

// Fewer rows than tokens; outputs have strides of their own; bfloat16 inputs.
TEST(CudaLinears, FirstRowsAndStrides) {
  Rng rng(2);
  for (const int64_t in : {128, 72}) {
    const int64_t out = 301, stride = 320;
    RandomLinear source(rng, kFormatBF16, Stage::kHead, 0, out, in, RowOrder::kPlain, false);
    Both both(source, adapters_for(rng, source.spec, kRanks));
    const int tokens = 37, rows = 18;
    auto batch = single_tokens(rng, tokens, int(kRanks.size()));
    std::vector<float> x = rng.floats(tokens * in);
    std::vector<uint16_t> rounded;
    for (float& v : x) {
      rounded.push_back(f32_to_bf16(v));
      v = bf16_to_f32(rounded.back());
    }
    std::vector<float> expected(tokens * out, 0.0f);
    both.kernels->output(batch->batch, {x.data(), both.reference.linear, expected.data()});
    expected.resize(rows * out);
    OnDevice kept;
    const Batch on_gpu = kept.put(batch->batch);
    float* to = kept.put(poisoned(rows * stride));
    cuda::run_linear(context(), on_gpu, both.linear,
                     {.x = kept.put(rounded),
                      .type = cuda::InputType::kBF16,
                      .rows = rows,
                      .out = to,
                      .out_stride = stride});
    const auto padded = OnDevice::get(to, rows * stride);
    std::vector<float> got;
    for (int r = 0; r < rows; ++r) {
      got.insert(got.end(), padded.begin() + r * stride, padded.begin() + r * stride + out);
      for (int64_t c = out; c < stride; ++c) ASSERT_TRUE(std::isnan(padded[r * stride + c]));
    }
    EXPECT_LT(distance(got, expected), tolerance(kFormatBF16, got.size()));
  }
}

// Dense bfloat16 linears, which cuBLASLt computes where rows are many and strides allow: stored and
// added, of either input, with a bias and without; recorded, and with no adapter about, the
// same bits.
TEST(CudaLinears, DenseRows) {
  Rng rng(8);
  const auto shapes = cases<DenseShape>(
      {{64, 64}, {301, 128}, {300, 72}, {512, 576}, {33, 40}, {1000, 200}}, {{64, 64}, {301, 72}});
  uint64_t key = 1 << 20;
  for (const DenseShape& shape : shapes) {
    for (const bool bias : {false, true}) {
      RandomLinear source(rng, kFormatBF16, Stage::kHead, 0, shape.out, shape.in, RowOrder::kPlain,
                          bias);
      Both both(source, adapters_for(rng, source.spec, kRanks));
      ASSERT_EQ(cuda::packed(both.linear).codec, cuda::Codec::kBf16Rows);
      auto batch = single_tokens(rng, kMost, int(kRanks.size()));
      std::vector<float> x = rng.floats(kMost * shape.in);
      std::vector<uint16_t> rounded;
      for (float& v : x) {
        rounded.push_back(f32_to_bf16(v));
        v = bf16_to_f32(rounded.back());
      }
      std::vector<float> all(kMost * shape.out, 0.0f);
      both.kernels->output(batch->batch, {x.data(), both.reference.linear, all.data()});
      const auto residual = rng.floats(kMost * shape.out);
      OnDevice inputs;
      Batch on_gpu = inputs.put(batch->batch);
      const float* x_gpu = inputs.put(x);
      const uint16_t* rounded_gpu = inputs.put(rounded);
      for (const int rows : cases({0, 1, 15, 16, 17, 40, 130, kMost}, {0, 16, 130, kMost})) {
        for (const int variant : cases({0, 1, 2, 3, 4, 5, 6, 7}, {2, 5})) {
          const bool plain = variant & 1, add = variant & 2, wide = variant & 4;
          const int64_t stride = wide ? (shape.out + 11) / 4 * 4 : shape.out;
          SCOPED_TRACE(std::to_string(shape.out) + "x" + std::to_string(shape.in) + " rows " +
                       std::to_string(rows) + (bias ? " bias" : "") + (plain ? " bfloat16" : "") +
                       (add ? " add" : "") + (wide ? " wide" : ""));
          std::vector<float> before = poisoned(rows * stride), expected;
          for (int64_t i = 0; i < rows; ++i) {
            for (int64_t o = 0; o < shape.out; ++o) {
              if (add) before[i * stride + o] = residual[i * shape.out + o];
              expected.push_back(all[i * shape.out + o] +
                                 (add ? residual[i * shape.out + o] : 0.0f));
            }
          }
          on_gpu.tokens = rows;
          on_gpu.adapters = true;
          OnDevice kept;
          float* out = kept.put(before);
          const cuda::LinearCall call{
              .x = plain ? static_cast<const void*>(rounded_gpu) : x_gpu,
              .type = plain ? cuda::InputType::kBF16 : cuda::InputType::kF32,
              .rows = rows,
              .out = out,
              .out_stride = stride,
              .add = add};
          // The outputs alone; what lies between them stays as it was.
          const auto run = [&](const Linear& linear, uint64_t recording) {
            if (rows > 0) gpu().upload(out, before.data(), before.size() * sizeof(float));
            const auto work = [&] { cuda::run_linear(context(), on_gpu, linear, call); };
            if (recording > 0) {
              gpu().run_recorded(recording, work);
            } else {
              work();
            }
            const auto padded = OnDevice::get(out, rows * stride);
            std::vector<float> got;
            for (int64_t r = 0; r < rows; ++r) {
              const auto row = padded.begin() + r * stride;
              got.insert(got.end(), row, row + shape.out);
              EXPECT_TRUE(std::all_of(row + shape.out, row + stride,
                                      [](float v) { return std::isnan(v); }));
            }
            return got;
          };
          const auto got = run(both.linear, 0);
          if (rows == 0) continue;
          EXPECT_LT(dense_distance(got, expected), tolerance(kFormatBF16, got.size()));
          ++key;
          for (int i = 0; i < 3; ++i)
            ASSERT_EQ(got, run(both.linear, key)) << "recorded, run " << i;
          const auto without = run(both.without, 0);
          on_gpu.adapters = false;  // in slots, and none in the batch
          ASSERT_EQ(without, run(both.linear, 0));
          for (int64_t i = 0; i < rows; ++i) {
            if (batch->adapter[i] >= 0) continue;
            ASSERT_EQ(0, std::memcmp(&got[i * shape.out], &without[i * shape.out],
                                     shape.out * sizeof(float)))
                << "row " << i;
          }
        }
      }
    }
  }
}

// The three ways to compute the same rows; cuBLASLt takes plain shapes and says what it leaves.
TEST(CudaLinears, WaysOfDenseRows) {
  Rng rng(9);
  const int64_t out = 200, in = 192;
  const int rows = 70;
  RandomLinear source(rng, kFormatBF16, Stage::kAttentionOut, 0, out, in, RowOrder::kPlain, true);
  Both both(source, {});
  auto batch = single_tokens(rng, rows, 0);
  std::vector<float> x = rng.floats(rows * in);
  std::vector<uint16_t> rounded;
  for (float& v : x) {
    rounded.push_back(f32_to_bf16(v));
    v = bf16_to_f32(rounded.back());
  }
  std::vector<float> expected(rows * out, 0.0f);
  both.kernels->output(batch->batch, {x.data(), both.reference.linear, expected.data()});
  OnDevice kept;
  const cuda::PackedWeights& weights = cuda::packed(both.linear);
  ASSERT_TRUE(weights.biased);
  float* to = kept.put(poisoned(rows * (out + 1) + 1));
  cuda::Product product;
  product.matrix = weights.matrix;
  product.map.entries = rows;
  product.operand.x = reinterpret_cast<const __nv_bfloat16*>(kept.put(rounded));
  product.operand.stride = in;
  product.epilogue.out = to;
  product.epilogue.stride = out;
  const auto check = [&] {
    EXPECT_LT(distance(OnDevice::get(to, rows * out), expected), 1e-5);
    const auto poison = poisoned(rows * out);
    gpu().upload(to, poison.data(), poison.size() * sizeof(float));
  };
  cuda::run_small_product(context(), weights.codec, product, rows);
  check();
  cuda::run_tile_product(context(), weights.codec, product);
  check();
  EXPECT_TRUE(cuda::run_blas_product(context(), product, weights.biased));
  check();
  product.epilogue.out = to + 1;
  EXPECT_FALSE(cuda::run_blas_product(context(), product, weights.biased));
  product.epilogue.out = to;
  product.epilogue.stride = out + 1;
  EXPECT_FALSE(cuda::run_blas_product(context(), product, weights.biased));
}

// Every code of every element alone: one-hot activations bring each weight out by itself.
TEST(CudaLinears, EveryCode) {
  Rng rng(6);
  const int64_t out = 32, in = 256;
  for (const Format* format : all_formats()) {
    RandomLinear source(rng, *format, Stage::kAttentionOut, 0, out, in, RowOrder::kPlain, false);
    put_every_code(source, *format);
    Both both(source, {});
    auto batch = single_tokens(rng, static_cast<int>(in), 0);
    std::vector<float> x(in * in, 0.0f), row(in);
    for (int64_t t = 0; t < in; ++t) x[t * in + t] = 1.0f;
    OnDevice kept;
    Batch on_gpu = kept.put(batch->batch);
    const float* x_gpu = kept.put(x);
    float* to = kept.put(poisoned(in * out));
    // Wider elements than bfloat16 are rounded to it.
    const double tolerance = is_quantized(*format) ? 4e-7 : 4e-3;
    for (const int tokens : {8, 256}) {
      on_gpu.tokens = tokens;
      for (int first = 0; first < in; first += tokens) {
        cuda::run_linear(
            context(), on_gpu, both.linear,
            {.x = x_gpu + first * in, .rows = tokens, .out = to + first * out, .out_stride = out});
      }
      const auto y = OnDevice::get(to, in * out);
      for (int64_t r = 0; r < out; ++r) {
        decode_row(*format, source.stored.experts[0][0], r, row.data());
        for (int64_t c = 0; c < in; ++c) {
          ASSERT_NEAR(y[c * out + r], row[c], tolerance * std::abs(row[c]))
              << format->name << " row " << r << " channel " << c << " tokens " << tokens;
        }
      }
    }
  }
}

const auto kExperts = cases<ExpertShape>(
    {{8, 2, 64, 64}, {4, 4, 96, 32}, {16, 3, 160, 40}, {3, 1, 32, 17}, {200, 6, 64, 32}},
    {{4, 4, 96, 32}, {3, 1, 32, 17}});

void check(ExpertCase& c) {
  const auto expected = c.reference();
  for (int tokens : cases({310, 150, 40, 9, 2, 1}, {310, 9, 1})) {
    const auto got = c.run(tokens, 7, true);
    EXPECT_LT(distance(got, rows_of(expected, tokens, c.s.hidden)), tolerance(c.format, got.size()))
        << c.format.name << " hidden " << c.s.hidden << " inner " << c.s.inner << " order "
        << int(c.order) << " tokens " << tokens;
    EXPECT_EQ(got, c.run(tokens, 7, true));
    expect_base_rows(*c.batch, tokens, c.s.hidden, got, c.run(tokens, 7, false));
  }
}

TEST(CudaLinears, ExpertsWithBothSeams) {
  Rng rng(3);
  const auto run_case = [&](const Format& format, const ExpertShape& s, Activation activation,
                            RowOrder order) {
    ExpertCase c(rng, format, s, activation, order);
    check(c);
  };
  for (const Format* format : all_formats()) {
    for (const ExpertShape& s : kExperts) {
      if (!has_width(*format, s.inner) || !has_width(*format, s.hidden)) continue;
      for (RowOrder order : {RowOrder::kInterleavedGateUp, RowOrder::kStackedGateUp})
        run_case(*format, s, Activation::kClampedSwiGlu, order);
      run_case(*format, s, Activation::kSwiGlu, RowOrder::kStackedGateUp);
      run_case(*format, s, Activation::kRelu2, RowOrder::kPlain);
    }
  }
}

// With weights and bias of zero, what comes out of the first matrix is the adapter's alone.
TEST(CudaLinears, AdapterAlone) {
  Rng rng(4);
  const auto clear = [](RandomLinear& linear) {
    std::fill(linear.codes.begin(), linear.codes.end(), std::byte{0});
    std::fill(linear.bias.begin(), linear.bias.end(), uint16_t{0});
  };
  ExpertCase experts(rng, kFormatMxfp4, {4, 2, 128, 64}, Activation::kSwiGlu,
                     RowOrder::kStackedGateUp, clear);
  check(experts);
  RandomLinear source(rng, kFormatFp8Block, Stage::kAttentionOut, 0, 200, 320, RowOrder::kPlain,
                      true);
  clear(source);
  Both both(source, adapters_for(rng, source.spec, kRanks));
  for (int tokens : {5, 60, 5000}) {
    auto batch = single_tokens(rng, tokens, int(kRanks.size()));
    const auto x = rng.floats(tokens * 320);
    std::vector<float> expected(tokens * 200, 0.0f);
    both.kernels->output(batch->batch, {x.data(), both.reference.linear, expected.data()});
    OnDevice kept;
    float* out = kept.put(poisoned(tokens * 200));
    cuda::run_linear(context(), kept.put(batch->batch), both.linear,
                     {.x = kept.put(x), .rows = tokens, .out = out, .out_stride = 200});
    EXPECT_LT(distance(OnDevice::get(out, tokens * 200), expected),
              tolerance(kFormatFp8Block, expected.size()));
  }
}

TEST(CudaLinears, SharedExpertAndEmbedding) {
  Rng rng(5);
  const int64_t hidden = 96, inner = 40;
  const int vocab = 301;
  for (const Format* format : all_formats()) {
    if (!has_width(*format, hidden)) continue;
    RandomLinear table(rng, *format, Stage::kEmbedding, 0, vocab, hidden, RowOrder::kPlain, false);
    Both table2(table, adapters_for(rng, table.spec, kRanks));
    const int64_t middle = has_width(*format, inner) ? inner : 64;
    RandomLinear gate(rng, *format, Stage::kSharedGate, 0, 1, hidden, RowOrder::kPlain, false);
    Both gate2(gate, adapters_for(rng, gate.spec, kRanks));
    for (Activation activation : {Activation::kSwiGlu, Activation::kRelu2}) {
      const bool gated = is_gated(activation);
      RandomLinear up(rng, *format, Stage::kSharedUp, 0, (gated ? 2 : 1) * middle, hidden,
                      gated ? RowOrder::kStackedGateUp : RowOrder::kPlain, false);
      RandomLinear down(rng, *format, Stage::kSharedDown, 0, hidden, middle, RowOrder::kPlain,
                        false);
      Both up2(up, adapters_for(rng, up.spec, kRanks));
      Both down2(down, adapters_for(rng, down.spec, kRanks));
      for (int tokens : {3, 150}) {
        auto batch = single_tokens(rng, tokens, int(kRanks.size()), vocab);
        const auto x = rng.floats(tokens * hidden);
        std::vector<float> expected = poisoned(tokens * hidden);
        table2.kernels->embed(batch->batch, {table2.reference.linear, expected.data()});
        OnDevice kept;
        const Batch on_gpu = kept.put(batch->batch);
        float* out = kept.put(poisoned(tokens * hidden));
        cuda::run_embedding(context(), on_gpu, {table2.linear, out});
        EXPECT_LT(distance(OnDevice::get(out, tokens * hidden), expected), 1e-5) << format->name;
        SharedExpertArgs args{x.data(),
                              up2.reference.linear,
                              down2.reference.linear,
                              gated ? gate2.reference.linear : Linear{},
                              static_cast<int>(middle),
                              activation,
                              expected.data()};
        up2.kernels->shared_expert(batch->batch, args);
        args = {kept.put(x),
                up2.linear,
                down2.linear,
                gated ? gate2.linear : Linear{},
                static_cast<int>(middle),
                activation,
                out};
        cuda::run_shared_expert(context(), on_gpu, args);
        EXPECT_LT(distance(OnDevice::get(out, tokens * hidden), expected),
                  tolerance(*format, expected.size()))
            << format->name << " tokens " << tokens;
      }
    }
  }
}

}  // namespace
}  // namespace lk::test
