// Random linears, adapters and batches for kernel tests, in memory. Deterministic for a seed.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/numeric.h"
#include "kernels/kernels.h"
#include "quant/formats.h"

namespace lk::test {

class Rng {
 public:
  explicit Rng(uint64_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint64_t>(n)); }
  float normal(float deviation = 1.0f) {
    return std::normal_distribution<float>(0.0f, deviation)(engine_);
  }
  uint64_t bits() { return engine_(); }
  std::vector<float> floats(int64_t n, float deviation = 1.0f) {
    std::vector<float> values(n);
    for (float& v : values) v = normal(deviation);
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

// A linear of any format with its bytes; `stored` views them.
struct RandomLinear {
  LinearSpec spec;
  StoredLinear stored;
  std::vector<std::byte> codes, scales;
  std::vector<uint16_t> bias;

  RandomLinear(Rng& rng, const Format& format, Stage stage, int experts, int64_t out, int64_t in,
               RowOrder order, bool with_bias) {
    spec.stage = stage;
    spec.experts = experts;
    spec.out = out;
    spec.in = in;
    spec.row_order = order;
    spec.bias = with_bias;
    const int count = std::max(experts, 1);
    const int64_t row_bytes = code_bytes(format.element, in), groups = (in + 31) / 32;
    codes.resize(count * out * row_bytes);
    const float deviation = 1.0f / std::sqrt(static_cast<float>(in));
    auto* bytes = reinterpret_cast<uint8_t*>(codes.data());
    switch (format.element) {
      case Element::kE2M1:
        for (auto& b : codes) b = static_cast<std::byte>(rng.bits());
        // Scales differ by factors of up to 8 from group to group.
        for (int64_t i = 0; i < count * out * groups; ++i)
          scales.push_back(static_cast<std::byte>(119 + rng.below(4)));
        break;
      case Element::kBF16:
        for (size_t i = 0; i < codes.size() / 2; ++i) {
          const uint16_t v = f32_to_bf16(rng.normal(deviation));
          std::memcpy(bytes + 2 * i, &v, 2);
        }
        break;
      case Element::kF16:
        for (size_t i = 0; i < codes.size() / 2;
             ++i) {  // sign, exponents 2^-6 .. 2^-3, any mantissa
          const auto v =
              static_cast<uint16_t>((rng.bits() & 0x83ffu) | uint16_t(9 + rng.below(3)) << 10);
          std::memcpy(bytes + 2 * i, &v, 2);
        }
        break;
      default:
        for (size_t i = 0; i < codes.size() / 4; ++i) {
          const float v = rng.normal(deviation);
          std::memcpy(bytes + 4 * i, &v, 4);
        }
    }
    stored.spec = &spec;
    stored.format = &format;
    for (int e = 0; e < count; ++e) {
      StoredMatrix m;
      m.rows = out;
      m.cols = in;
      m.row_bytes = row_bytes;
      m.codes = codes.data() + e * out * row_bytes;
      if (!scales.empty()) m.scales = scales.data() + e * out * groups;
      stored.experts.push_back({m});
    }
    if (with_bias) {
      for (int64_t i = 0; i < count * out; ++i) bias.push_back(f32_to_bf16(rng.normal(0.3f)));
      stored.bias = {reinterpret_cast<const std::byte*>(bias.data()), DType::kBF16,
                     experts > 0 ? Shape{count, out} : Shape{out}};
    }
  }
  RandomLinear(const RandomLinear&) = delete;
};

// One adapter's pairs for a linear; rank 0 leaves an expert alone.
struct RandomLora {
  std::vector<std::vector<uint16_t>> a, b;
  std::vector<LoraSource> sources;
  RandomLora(Rng& rng, const LinearSpec& spec, std::vector<int> ranks) {
    const int64_t in = spec.in, out = spec.out;
    for (int rank : ranks) {
      auto& av = a.emplace_back();
      auto& bv = b.emplace_back();
      for (int64_t i = 0; i < rank * in; ++i)
        av.push_back(f32_to_bf16(rng.normal(1.0f / std::sqrt(float(in)))));
      for (int64_t i = 0; i < rank * out; ++i)
        bv.push_back(f32_to_bf16(rng.normal(1.0f / std::sqrt(float(rank)))));
    }
    for (size_t e = 0; e < ranks.size(); ++e)
      sources.push_back({ranks[e], 0.5f, a[e].data(), b[e].data()});
  }
};

}  // namespace lk::test
