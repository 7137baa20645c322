// Times of the GPU's products with gpt-oss-20b's shapes, with eight adapters of rank 16 and
// without. Runs where LORIKEET_BENCH is set.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/linears.h"
#include "kernels/cuda/product.h"
#include "tests/cuda/on_device.h"
#include "tests/kernels/op_case.h"

namespace lk::test {
namespace {

constexpr double kBandwidth = 4.4e12, kRate = 790e12;  // measured on an H200: copy, bf16 product
constexpr int kSlots = 8, kRank = 16;

// A linear of random codes, quickly; scales and the exponents of bfloat16 are moderate.
struct Filled {
  LinearSpec spec;
  StoredLinear stored;
  std::vector<std::byte> codes, scales;
  Filled(const Format& format, Stage stage, int experts, int64_t out, int64_t in, RowOrder order) {
    spec.stage = stage;
    spec.experts = experts;
    spec.out = out;
    spec.in = in;
    spec.row_order = order;
    const int count = std::max(experts, 1);
    const int64_t row_bytes = code_bytes(format.element, in);
    codes.resize(count * out * row_bytes / 8 * 8);
    uint64_t state = 88172645463325252u;
    const bool wide = format.element == Element::kBF16;
    for (size_t i = 0; i + 8 <= codes.size(); i += 8) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      const uint64_t v = wide ? (state & 0x80ff80ff80ff80ffu) | 0x3c003c003c003c00u : state;
      std::memcpy(&codes[i], &v, 8);
    }
    const int64_t each = matrix_scales(format, out, in);
    scales.assign(count * each, std::byte{119});
    stored.spec = &spec;
    stored.format = &format;
    for (int e = 0; e < count; ++e) {
      StoredMatrix m;
      m.rows = out;
      m.cols = in;
      m.row_bytes = row_bytes;
      m.codes = codes.data() + e * out * row_bytes;
      if (each > 0) m.scales = scales.data() + e * each;
      stored.experts.push_back({m});
    }
  }
};

struct OnGpu {
  std::unique_ptr<Weights> weights;
  std::vector<std::unique_ptr<LoraWeights>> owned;
  std::vector<const LoraWeights*> lora;
  OnDevice kept;
  Linear linear;
  explicit OnGpu(const Filled& source)
      : weights(cuda::pack_weights(gpu(), source.stored, {}, false)) {
    const std::vector<uint16_t> a(kRank * source.spec.in, 0x3c12),
        b(kRank * source.spec.out, 0xbc12);
    const std::vector<LoraSource> pairs(std::max(source.spec.experts, 1),
                                        {kRank, 1.0f, a.data(), b.data()});
    for (int s = 0; s < kSlots; ++s) {
      owned.push_back(cuda::pack_pairs(gpu(), source.spec, pairs));
      lora.push_back(owned.back().get());
    }
    linear = kept.put(Linear{weights.get(), lora});
  }
};

// Milliseconds of one call of `work`, the median of replays.
double milliseconds(uint64_t key, int calls, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < 13; ++i) {
    gpu().synchronize();
    const auto start = std::chrono::steady_clock::now();
    gpu().run_recorded(key, work);
    gpu().synchronize();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (i >= 3) times.push_back(took.count() / calls);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void report(const char* what, int tokens, bool adapters, double ms, double bytes, double flop) {
  std::printf("%-28s %5d tokens %-10s %9.2f us %7.0f GB/s %5.1f%%  %7.2f TFLOP/s %5.1f%%\n", what,
              tokens, adapters ? "8 adapters" : "base", ms * 1e3, bytes / ms / 1e6,
              100 * bytes / ms * 1e3 / kBandwidth, flop / ms / 1e9, 100 * flop / ms * 1e3 / kRate);
  std::fflush(stdout);
}

uint64_t next_key = 1000;

TEST(CudaLinearsBench, GptOss20b) {
  if (!std::getenv("LORIKEET_BENCH")) GTEST_SKIP() << "LORIKEET_BENCH is not set";
  cuda::Context context(gpu());
  constexpr int kMost = 8192, kExperts = 32, kTopK = 4, kHidden = 2880;
  Rng rng(1);
  OnDevice kept;
  auto batch = single_tokens(rng, kMost, kSlots);
  for (int t = 0; t < kMost; ++t) batch->adapter[t] = t < 256 ? t % kSlots : t / (kMost / kSlots);
  Batch on_gpu = kept.put(batch->batch);
  std::vector<float> ones(kMost * kHidden);
  for (float& v : ones) v = 0.001f * static_cast<float>(rng.below(2000) - 1000);
  float* x = kept.put(ones);
  float* residual = kept.put(ones);
  {
    Filled up_source(kFormatMxfp4, Stage::kExpertUp, kExperts, 2 * kHidden, kHidden,
                     RowOrder::kInterleavedGateUp);
    Filled down_source(kFormatMxfp4, Stage::kExpertDown, kExperts, kHidden, kHidden,
                       RowOrder::kPlain);
    const auto start = std::chrono::steady_clock::now();
    OnGpu up(up_source), down(down_source);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("packed %.0f MB in %.2f s\n",
                up.weights->bytes() / 1e6 + down.weights->bytes() / 1e6, took.count());
    // Eight layers one after the other, each with experts of its own, so that a single token's are
    // not all in the second cache.
    constexpr int kLayers = 8;
    std::vector<int32_t> chosen(kLayers * kMost * kTopK);
    for (int l = 0; l < kLayers; ++l) {
      for (int t = 0; t < kMost; ++t) {
        const int first = t == 0 ? l * kTopK : rng.below(kExperts);
        for (int k = 0; k < kTopK; ++k)
          chosen[(l * kMost + t) * kTopK + k] = (first + k * (t == 0 ? 1 : 7)) % kExperts;
      }
    }
    const int32_t* expert = kept.put(chosen);
    const float* weight = kept.put(std::vector<float>(kMost * kTopK, 0.25f));
    for (int tokens : {1, 16, 64, 256, 1024, 8192}) {
      const int layers = tokens > 256 ? 1 : kLayers;
      std::vector<int> used(kExperts, 0);
      double active = 0;
      for (int l = 0; l < layers; ++l) {
        std::fill(used.begin(), used.end(), 0);
        for (int i = 0; i < tokens * kTopK; ++i) used[chosen[l * kMost * kTopK + i]] = 1;
        active += std::accumulate(used.begin(), used.end(), 0.0) / layers;
      }
      const double bytes =
          (up.weights->bytes() + down.weights->bytes()) / double(kExperts) * active;
      const double flop = 2.0 * tokens * kTopK * 3 * kHidden * kHidden;
      for (bool adapters : {false, true}) {
        on_gpu.tokens = tokens;
        on_gpu.adapters = adapters;
        const double ms = milliseconds(next_key++, layers, [&] {
          for (int l = 0; l < layers; ++l) {
            cuda::run_experts(context, on_gpu,
                              {.x = x,
                               .expert = expert + l * kMost * kTopK,
                               .weight = weight,
                               .experts = kExperts,
                               .top_k = kTopK,
                               .intermediate = kHidden,
                               .up = up.linear,
                               .down = down.linear,
                               .activation = Activation::kClampedSwiGlu,
                               .alpha = 1.702f,
                               .limit = 7.0f,
                               .residual = residual});
          }
        });
        report("experts mxfp4 32 top-4", tokens, adapters, ms, bytes, flop);
      }
    }
  }
  const auto dense = [&](const char* what, int64_t out, int copies, const std::vector<int>& sizes) {
    Filled source(kFormatBF16, Stage::kHead, 0, out, kHidden, RowOrder::kPlain);
    std::vector<std::unique_ptr<OnGpu>> layers;
    for (int i = 0; i < copies; ++i) layers.push_back(std::make_unique<OnGpu>(source));
    DeviceBuffer y(gpu(), sizes.back() * out * sizeof(float), MemoryUse::kWorkspace);
    for (int tokens : sizes) {
      for (bool adapters : {false, true}) {
        on_gpu.tokens = tokens;
        on_gpu.adapters = adapters;
        const double ms = milliseconds(next_key++, copies, [&] {
          for (const auto& layer : layers) {
            cuda::run_linear(context, on_gpu, layer->linear,
                             {.x = x,
                              .type = cuda::InputType::kBF16,
                              .rows = tokens,
                              .out = y.as<float>(),
                              .out_stride = out});
          }
        });
        report(what, tokens, adapters, ms, double(layers[0]->weights->bytes()),
               2.0 * tokens * out * kHidden);
      }
    }
  };
  dense("dense bf16 5120x2880", 5120, 8, {1, 16, 64, 256, 8192});
  dense("head bf16 201088x2880", 201088, 1, {1, 16, 64});
}

// The ways to compute a dense bfloat16 linear, each from one row to many: what dense.cu's constants
// were set from. Bytes are those of the weights, the rows of x and the outputs, once.
TEST(CudaLinearsBench, WaysOfDenseRows) {
  if (!std::getenv("LORIKEET_BENCH")) GTEST_SKIP() << "LORIKEET_BENCH is not set";
  constexpr double kPeakBandwidth = 4.8e12, kPeakRate = 990e12;
  constexpr int kMost = 8192, kMostIn = 4096, kMostSmall = 256;
  struct Shape {
    const char* name;
    int64_t out, in;
    int copies;  // so that weights do not stay in the second cache
  };
  const Shape shapes[] = {{"q 4096x2880", 4096, 2880, 8},
                          {"o 2880x4096", 2880, 4096, 8},
                          {"8192x2048", 8192, 2048, 8},
                          {"head 201088x2880", 201088, 2880, 1}};
  enum Way { kSmall, kTile, kBlas };
  const char* const names[] = {"small", "tile", "cuBLASLt"};
  cuda::Context context(gpu());
  Rng rng(2);
  OnDevice kept;
  auto batch = single_tokens(rng, kMost, kSlots);
  for (int t = 0; t < kMost; ++t) batch->adapter[t] = t < 256 ? t % kSlots : t / (kMost / kSlots);
  Batch on_gpu = kept.put(batch->batch);
  std::vector<uint16_t> values(size_t{kMost} * kMostIn);
  for (uint16_t& v : values) v = f32_to_bf16(0.001f * static_cast<float>(rng.below(2000) - 1000));
  const auto* x = reinterpret_cast<const __nv_bfloat16*>(kept.put(values));
  for (const Shape& shape : shapes) {
    Filled source(kFormatBF16, Stage::kHead, 0, shape.out, shape.in, RowOrder::kPlain);
    std::vector<std::unique_ptr<OnGpu>> layers;
    for (int i = 0; i < shape.copies; ++i) layers.push_back(std::make_unique<OnGpu>(source));
    DeviceBuffer y(gpu(), size_t(kMost) * shape.out * sizeof(float), MemoryUse::kWorkspace);
    for (const int rows : {1, 4, 16, 32, 64, 256, 2048, 8192}) {
      const double bytes = double(shape.out) * shape.in * 2 + double(rows) * shape.in * 2 +
                           double(rows) * shape.out * 4;
      const double flop = 2.0 * rows * shape.out * shape.in;
      for (const bool adapters : {false, true}) {
        on_gpu.tokens = rows;
        on_gpu.adapters = adapters;
        for (const Way way : {kSmall, kTile, kBlas}) {
          if (way == kSmall && rows > kMostSmall) continue;
          bool computed = true;
          const double ms = milliseconds(next_key++, shape.copies, [&] {
            for (const auto& layer : layers) {
              const cuda::PackedWeights& weights = cuda::packed(layer->linear);
              cuda::Product product;
              product.matrix = weights.matrix;
              product.map.entries = rows;
              product.operand.x = x;
              product.operand.stride = shape.in;
              cuda::run_shrink(context, on_gpu, layer->linear, product);
              product.epilogue.out = y.as<float>();
              product.epilogue.stride = shape.out;
              if (way == kSmall) {
                cuda::run_small_product(context, weights.codec, product, rows);
              } else if (way == kTile) {
                cuda::run_tile_product(context, weights.codec, product);
              } else {
                computed = cuda::run_blas_product(context, product, weights.biased) && computed;
                cuda::run_expand(context, product);
              }
            }
          });
          EXPECT_TRUE(computed);
          std::printf(
              "%-18s %5d rows %-10s %-8s %9.2f us %6.0f GB/s %5.1f%%  %7.2f TFLOP/s %5.1f%%\n",
              shape.name, rows, adapters ? "8 adapters" : "base", names[way], ms * 1e3,
              bytes / ms / 1e6, 100 * bytes / ms * 1e3 / kPeakBandwidth, flop / ms / 1e9,
              100 * flop / ms * 1e3 / kPeakRate);
          std::fflush(stdout);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lk::test
