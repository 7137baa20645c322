// The expert stage alone in gpt-oss-20b's shape (32 experts, 2880, top 4, MXFP4): 1 and 8 tokens
// against read bandwidth, 256 against the arithmetic peak, eight tokens with eight rank-16 adapters
// against none. Usage: experts_bench [threads] [kernels]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>

#include "base/numeric.h"
#include "bench/limits.h"
#include "kernels/select.h"
#include "quant/formats.h"

namespace {

using namespace lk;

constexpr int kExperts = 32, kTopK = 4, kHidden = 2880, kInner = 2880, kLayers = 4, kAdapters = 8,
              kRank = 16;
constexpr double kExpertBytes = 3.0 * kHidden * kInner * 17 / 32;

struct Layer {
  LinearSpec up_spec, down_spec;
  std::unique_ptr<Weights> up, down;
  std::vector<std::unique_ptr<LoraWeights>> up_lora, down_lora;
  std::vector<const LoraWeights*> up_slots, down_slots;
};

std::unique_ptr<Weights> random_weights(Kernels& kernels, const LinearSpec& spec,
                                        std::mt19937_64& random) {
  std::vector<uint64_t> codes(int64_t{kExperts} * spec.out * spec.in / 16);
  std::vector<uint8_t> scales(int64_t{kExperts} * spec.out * spec.in / 32);
  std::vector<uint16_t> bias(int64_t{kExperts} * spec.out, 0x3c00);
  for (auto& c : codes) c = random();
  for (auto& s : scales) s = static_cast<uint8_t>(118 + random() % 4);
  StoredLinear linear;
  linear.spec = &spec;
  linear.format = &kFormatMxfp4;
  for (int e = 0; e < kExperts; ++e) {
    StoredMatrix m;
    m.rows = spec.out;
    m.cols = spec.in;
    m.row_bytes = spec.in / 2;
    m.codes = reinterpret_cast<const std::byte*>(codes.data()) + e * spec.out * spec.in / 2;
    m.scales = reinterpret_cast<const std::byte*>(scales.data()) + e * spec.out * spec.in / 32;
    linear.experts.push_back({m});
  }
  linear.bias = {
      reinterpret_cast<const std::byte*>(bias.data()), DType::kBF16, {kExperts, spec.out}};
  return kernels.pack(linear, false);
}

std::unique_ptr<LoraWeights> random_lora(Kernels& kernels, const LinearSpec& spec,
                                         std::mt19937_64& random) {
  std::vector<uint16_t> a(int64_t{kRank} * spec.in), b(int64_t{kRank} * spec.out);
  for (auto& v : a) v = f32_to_bf16(1e-2f * static_cast<float>(int(random() % 201) - 100) / 100);
  for (auto& v : b) v = f32_to_bf16(1e-2f * static_cast<float>(int(random() % 201) - 100) / 100);
  const std::vector<LoraSource> sources(kExperts, LoraSource{kRank, 2.0f, a.data(), b.data()});
  return kernels.pack_lora(spec, sources);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  auto made = make_kernels(argc > 2 ? argv[2] : "", threads);
  if (!made) {
    std::fprintf(stderr, "experts_bench: %s\n", made.error().message.c_str());
    return 2;
  }
  Kernels& kernels = **made;
  bench::Limits limits;
  {
    ThreadPool pool(threads);
    limits = bench::measure_limits(pool);
  }
  std::printf(
      "kernels %s, %d threads; limits: read %.1f GB/s, f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s\n",
      std::string(kernels.name()).c_str(), kernels.threads(), limits.read_gb_s, limits.fma_gflop_s,
      limits.bf16_gflop_s);

  std::mt19937_64 random(1);
  std::vector<Layer> layers(kLayers);
  for (Layer& layer : layers) {
    layer.up_spec = {
        Stage::kExpertUp, 0, kExperts, 2 * kInner, kHidden, RowOrder::kInterleavedGateUp, true, {}};
    layer.down_spec = {Stage::kExpertDown, 0,    kExperts, kHidden, kInner,
                       RowOrder::kPlain,   true, {}};
    layer.up = random_weights(kernels, layer.up_spec, random);
    layer.down = random_weights(kernels, layer.down_spec, random);
    for (int a = 0; a < kAdapters; ++a) {
      layer.up_lora.push_back(random_lora(kernels, layer.up_spec, random));
      layer.down_lora.push_back(random_lora(kernels, layer.down_spec, random));
      layer.up_slots.push_back(layer.up_lora.back().get());
      layer.down_slots.push_back(layer.down_lora.back().get());
    }
  }

  constexpr int kMaxTokens = 256;
  std::vector<float> x(kMaxTokens * kHidden), residual(x.size()), weight(kMaxTokens * kTopK, 0.25f);
  for (float& v : x) v = static_cast<float>(int(random() % 2001) - 1000) / 500;
  int next_layer = 0;
  // One call on the next layer with fresh random routing; returns seconds and adds the distinct
  // experts to `touched`.
  auto once = [&](int tokens, bool lora, int64_t& touched) {
    Layer& layer = layers[next_layer++ % kLayers];
    std::vector<int32_t> expert, adapter(tokens);
    std::set<int> distinct;
    for (int t = 0; t < tokens; ++t) {
      adapter[t] = lora ? t % kAdapters : -1;
      std::set<int> mine;
      while (mine.size() < kTopK) mine.insert(static_cast<int>(random() % kExperts));
      for (int e : mine) expert.push_back(e), distinct.insert(e);
    }
    touched += static_cast<int64_t>(distinct.size());
    Batch batch;
    batch.tokens = tokens;
    batch.adapter = adapter.data();
    ExpertArgs args{x.data(),
                    expert.data(),
                    weight.data(),
                    kExperts,
                    kTopK,
                    kInner,
                    {layer.up.get(), layer.up_slots},
                    {layer.down.get(), layer.down_slots},
                    Activation::kClampedSwiGlu,
                    1.702f,
                    7.0f,
                    residual.data()};
    const double start = bench::now();
    kernels.experts(batch, args);
    return bench::now() - start;
  };
  auto median = [](std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
    return v[v.size() / 2];
  };
  for (int tokens : {1, 8}) {
    std::vector<double> rate;
    for (int i = 0; i < 41; ++i) {
      int64_t touched = 0;
      const double seconds = once(tokens, false, touched);
      if (i > 4) rate.push_back(static_cast<double>(touched) * kExpertBytes / seconds * 1e-9);
    }
    std::printf("%3d tokens             %7.1f GB/s   %5.1f%% of read bandwidth\n", tokens,
                median(rate), 100 * median(rate) / limits.read_gb_s);
  }
  for (int tokens : {32, 256}) {
    std::vector<double> seconds;
    for (int i = 0; i < 7; ++i) {
      int64_t touched = 0;
      seconds.push_back(once(tokens, false, touched));
    }
    const double rate = 2.0 * 3 * kHidden * kInner * kTopK * tokens / median(seconds) * 1e-9;
    std::printf("%3d tokens             %7.1f GFLOP/s %5.1f%% of the arithmetic peak\n", tokens,
                rate, 100 * rate / limits.peak_gflop_s());
  }
  std::vector<double> with, without, ratio;
  for (int i = 0; i < 60;
       ++i) {  // alternating; routing differs, so time per distinct expert is compared
    int64_t base_experts = 0, lora_experts = 0;
    const double base = once(8, false, base_experts), adapted = once(8, true, lora_experts);
    if (i < 4) continue;
    without.push_back(base / static_cast<double>(base_experts));
    with.push_back(adapted / static_cast<double>(lora_experts));
  }
  std::printf("  8 tokens, 8 adapters r%d: %+.1f%% time over none\n", kRank,
              100 * (median(with) / median(without) - 1));
  return 0;
}
