// The expert stage alone in gpt-oss-20b's shape (32 experts, 2880, top 4) in any format, on every
// backend that takes it: 1, 8 and 16 tokens against read bandwidth, 256 against the arithmetic
// peak, with eight rank-16 adapters and without; backends and adapters alternate on the same
// routing. Usage: experts_bench [THREADS] [KERNELS or ""] [FORMAT, mxfp4 if none] [BACKEND, all if
// none]
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>

#include "base/numeric.h"
#include "bench/arguments.h"
#include "bench/limits.h"
#include "kernels/moe_backends.h"
#include "kernels/select.h"
#include "quant/formats.h"

namespace {

using namespace lk;

constexpr int kExperts = 32, kTopK = 4, kHidden = 2880, kInner = 2880, kLayers = 4, kAdapters = 8,
              kRank = 16;

DType scale_dtype(const Format& format) {
  return format.scale == ScaleCodec::kFloat ? DType::kF32 : DType::kU8;
}

// Codes and scales of one matrix in the file.
int64_t matrix_bytes(const Format& format, int64_t rows, int64_t cols) {
  return rows * code_bytes(format.element, cols) +
         matrix_scales(format, rows, cols) * static_cast<int64_t>(dtype_size(scale_dtype(format)));
}

struct Layer {
  LinearSpec up_spec, down_spec;
  std::unique_ptr<Weights> up, down;
  std::vector<std::unique_ptr<LoraWeights>> up_lora, down_lora;
  std::vector<const LoraWeights*> up_slots, down_slots;
};

std::unique_ptr<Weights> random_weights(Kernels& kernels, const LinearSpec& spec,
                                        const Format& format, const ProductForm& form,
                                        std::mt19937_64& random) {
  const int64_t row_bytes = code_bytes(format.element, spec.in);
  const int64_t scales_each = matrix_scales(format, spec.out, spec.in);
  std::vector<uint64_t> codes(int64_t{kExperts} * spec.out * row_bytes / 8);
  std::vector<uint8_t> byte_scales(kExperts * scales_each);
  std::vector<float> float_scales(kExperts * scales_each, 0.01f);
  std::vector<uint16_t> bias(int64_t{kExperts} * spec.out, 0x3c00);
  // Numbers in every format, of E4M3 up to 2, of the wider ones of the order 1/100 without
  // subnormals.
  uint64_t keep = ~uint64_t{0}, set = 0;
  switch (format.element) {
    case Element::kE2M1:
      break;
    case Element::kE4M3:
      keep = 0xbfbfbfbfbfbfbfbf;
      break;
    case Element::kF32:
      keep = 0x807fffff807fffff, set = 0x3c0000003c000000;
      break;
    case Element::kBF16:
    case Element::kF16:
      keep = 0x807f807f807f807f, set = 0x3c003c003c003c00;
  }
  for (auto& c : codes) c = (random() & keep) | set;
  const int first = format.scale == ScaleCodec::kE4M3 ? 0x30 : 118;
  for (auto& s : byte_scales) s = static_cast<uint8_t>(first + random() % 4);
  StoredLinear linear;
  linear.spec = &spec;
  linear.format = &format;
  for (int e = 0; e < kExperts; ++e) {
    StoredMatrix m;
    m.rows = spec.out;
    m.cols = spec.in;
    m.row_bytes = row_bytes;
    m.codes = reinterpret_cast<const std::byte*>(codes.data()) + e * spec.out * row_bytes;
    m.scale_dtype = scale_dtype(format);
    m.scales = format.scale == ScaleCodec::kFloat
                   ? reinterpret_cast<const std::byte*>(float_scales.data() + e * scales_each)
                   : reinterpret_cast<const std::byte*>(byte_scales.data() + e * scales_each);
    m.tensor_scale = format.tensor_scale == TensorScale::kDivide ? 100.0f : 0.01f;
    linear.experts.push_back({m});
  }
  linear.bias = {
      reinterpret_cast<const std::byte*>(bias.data()), DType::kBF16, {kExperts, spec.out}};
  return kernels.pack(linear, form, false);
}

std::unique_ptr<LoraWeights> random_lora(Kernels& kernels, const LinearSpec& spec,
                                         std::mt19937_64& random) {
  std::vector<uint16_t> a(int64_t{kRank} * spec.in), b(int64_t{kRank} * spec.out);
  for (auto& v : a) v = f32_to_bf16(1e-2f * static_cast<float>(int(random() % 201) - 100) / 100);
  for (auto& v : b) v = f32_to_bf16(1e-2f * static_cast<float>(int(random() % 201) - 100) / 100);
  const std::vector<LoraSource> sources(kExperts, LoraSource{kRank, 2.0f, a.data(), b.data()});
  return kernels.pack_lora(spec, sources);
}

std::vector<Layer> make_layers(Kernels& kernels, const Format& format, const ProductForm& form) {
  std::mt19937_64 random(1);
  std::vector<Layer> layers(kLayers);
  for (Layer& layer : layers) {
    layer.up_spec = {
        Stage::kExpertUp, 0, kExperts, 2 * kInner, kHidden, RowOrder::kInterleavedGateUp, true, {}};
    layer.down_spec = {Stage::kExpertDown, 0,    kExperts, kHidden, kInner,
                       RowOrder::kPlain,   true, {}};
    layer.up = random_weights(kernels, layer.up_spec, format, form, random);
    layer.down = random_weights(kernels, layer.down_spec, format, form, random);
    for (int a = 0; a < kAdapters; ++a) {
      layer.up_lora.push_back(random_lora(kernels, layer.up_spec, random));
      layer.down_lora.push_back(random_lora(kernels, layer.down_spec, random));
      layer.up_slots.push_back(layer.up_lora.back().get());
      layer.down_slots.push_back(layer.down_lora.back().get());
    }
  }
  return layers;
}

struct Contender {
  const MoeBackend* backend;
  std::vector<Layer> layers;
  std::array<std::vector<double>, 2> times;  // without and with adapters, s per distinct expert
  double log_time = 0;
};

struct Routing {
  std::vector<int32_t> expert;
  int distinct;
};

Routing random_routing(int tokens, std::mt19937_64& random) {
  Routing routing;
  std::set<int> distinct;
  for (int t = 0; t < tokens; ++t) {
    std::set<int> mine;
    while (mine.size() < kTopK) mine.insert(static_cast<int>(random() % kExperts));
    for (int e : mine) routing.expert.push_back(e), distinct.insert(e);
  }
  routing.distinct = static_cast<int>(distinct.size());
  return routing;
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments("experts_bench",
                                   "[THREADS] [KERNELS or \"\"] [FORMAT] [BACKEND]");
  std::vector<std::string> words = arguments.parse(argc, argv, 0, 4);
  const std::string defaults[] = {"0", "", "mxfp4", ""};
  for (size_t i = words.size(); i < 4; ++i) words.push_back(defaults[i]);
  const int threads = arguments.as_number("THREADS", words[0], 0, bench::kMostThreads);
  auto made = make_kernels(words[1], threads);
  if (!made) {
    std::fprintf(stderr, "experts_bench: %s\n", made.error().message.c_str());
    return 2;
  }
  Kernels& kernels = **made;
  const Format* format = find_format(words[2]);
  if (!format) arguments.die("there is no format '" + words[2] + "'");
  const auto expert_bytes = static_cast<double>(matrix_bytes(*format, 2 * kInner, kHidden) +
                                                matrix_bytes(*format, kHidden, kInner));
  bench::Limits limits;
  {
    ThreadPool pool(threads);
    limits = bench::measure_limits(pool);
  }
  std::printf(
      "%s, kernels %s, %d threads; limits: read %.1f GB/s, f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s\n",
      std::string(format->name).c_str(), std::string(kernels.name()).c_str(), kernels.threads(),
      limits.read_gb_s, limits.fma_gflop_s, limits.bf16_gflop_s);

  const std::string_view only = words[3];
  std::vector<Contender> contenders;
  for (const MoeBackend& backend : moe_backends()) {
    if (backend.form.plain_loops || (!only.empty() && backend.name != only)) continue;
    if (!same_device(backend, kernels.name())) continue;
    const MoeNeeds needs = {.kernels = kernels.name(),
                            .up = format,
                            .down = format,
                            .bias = true,
                            .hidden = kHidden,
                            .intermediate = kInner,
                            .max_rank = kRank,
                            .activations = {}};
    if (choose_moe_backend(needs, backend.name))
      contenders.push_back({&backend, make_layers(kernels, *format, backend.form), {}});
  }
  if (contenders.empty()) {
    std::fprintf(stderr, "experts_bench: no backend '%s' takes %s\n", std::string(only).c_str(),
                 std::string(format->name).c_str());
    return 2;
  }

  std::mt19937_64 random(2);
  constexpr int kMaxTokens = 256;
  std::vector<float> x(kMaxTokens * kHidden), residual(x.size()), weight(kMaxTokens * kTopK, 0.25f);
  for (float& v : x) v = static_cast<float>(int(random() % 2001) - 1000) / 500;
  int round = 0;
  std::printf("%-6s %-15s %9s %9s %7s %8s\n", "tokens", "backend", "us", "rate", "share",
              "adapters");
  for (const int tokens : {1, 8, 16, 256}) {
    for (Contender& c : contenders) c.times = {};
    std::vector<double> expert_counts;
    for (int i = 0; i < (tokens <= 16 ? 44 : 9); ++i, ++round) {
      const Routing routing = random_routing(tokens, random);
      expert_counts.push_back(routing.distinct);
      for (const bool lora : {false, true}) {
        for (Contender& c : contenders) {
          const Layer& layer = c.layers[round % kLayers];
          std::vector<int32_t> adapter(tokens);
          for (int t = 0; t < tokens; ++t) adapter[t] = lora ? t % kAdapters : -1;
          Batch batch;
          batch.tokens = tokens;
          batch.adapter = adapter.data();
          const ExpertArgs args{x.data(),
                                routing.expert.data(),
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
          if (i >= 4) c.times[lora].push_back((bench::now() - start) / routing.distinct);
        }
      }
    }
    const double distinct = median(expert_counts);
    for (Contender& c : contenders) {
      // Time per distinct expert, so that routings of other sizes compare.
      const double base = median(c.times[0]), adapted = median(c.times[1]);
      c.log_time += std::log(base) + std::log(adapted);
      if (tokens <= 16) {
        const double rate = expert_bytes / base * 1e-9;
        std::printf("%-6d %-15s %9.0f %5.1fGB/s %6.1f%% %+7.1f%%\n", tokens,
                    std::string(c.backend->name).c_str(), 1e6 * base * distinct, rate,
                    100 * rate / limits.read_gb_s, 100 * (adapted / base - 1));
      } else {
        const double rate = 2.0 * 3 * kHidden * kInner * kTopK * tokens / (base * distinct) * 1e-9;
        std::printf("%-6d %-15s %9.0f %5.0fGF/s %6.1f%% %+7.1f%%\n", tokens,
                    std::string(c.backend->name).c_str(), 1e6 * base * distinct, rate,
                    100 * rate / limits.peak_gflop_s(), 100 * (adapted / base - 1));
      }
    }
  }
  for (const Contender& c : contenders) {
    std::printf("%-15s %.2f of %s's time, geometric mean over all rows\n",
                std::string(c.backend->name).c_str(),
                std::exp((c.log_time - contenders.back().log_time) / 8),
                std::string(contenders.back().backend->name).c_str());
  }
  return 0;
}
