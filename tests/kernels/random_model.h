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

// A linear of any format with its bytes; `stored` views them. Gate and up of a stacked linear are
// matrices of their own, each with its own tensor scale. Weights are of the order 1 / sqrt(in).
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
    const int count = std::max(experts, 1), parts = order == RowOrder::kStackedGateUp ? 2 : 1;
    const int64_t rows = out / parts, row_bytes = code_bytes(format.element, in);
    const int64_t each = matrix_scales(format, rows, in);
    const float deviation = 1.0f / std::sqrt(static_cast<float>(in));
    fill_codes(rng, format.element, count * out * row_bytes, deviation);
    DType scale_dtype = DType::kU8;
    if (format.scale == ScaleCodec::kFloat) {
      scale_dtype = format.group_cols == 0 ? DType::kF32 : DType::kBF16;
    }
    const auto scale_size = static_cast<int64_t>(dtype_size(scale_dtype));
    fill_scales(rng, format.scale, scale_dtype, count * parts * each, deviation);
    stored.spec = &spec;
    stored.format = &format;
    for (int e = 0; e < count; ++e) {
      auto& matrices = stored.experts.emplace_back();
      for (int p = 0; p < parts; ++p) {
        const int64_t index = int64_t{e} * parts + p;
        StoredMatrix m;
        m.part = parts == 1 ? RowPart::kAll : p == 0 ? RowPart::kGate : RowPart::kUp;
        m.rows = rows;
        m.cols = in;
        m.row_bytes = row_bytes;
        m.codes = codes.data() + index * rows * row_bytes;
        if (!scales.empty()) m.scales = scales.data() + index * each * scale_size;
        m.scale_dtype = scale_dtype;
        if (format.tensor_scale != TensorScale::kNone) {
          const float scale = deviation * (0.1f + 0.1f * static_cast<float>(rng.below(5)));
          m.tensor_scale = format.tensor_scale == TensorScale::kDivide ? 1.0f / scale : scale;
        }
        matrices.push_back(m);
      }
    }
    if (with_bias) {
      for (int64_t i = 0; i < count * out; ++i) bias.push_back(f32_to_bf16(rng.normal(0.3f)));
      stored.bias = {reinterpret_cast<const std::byte*>(bias.data()), DType::kBF16,
                     experts > 0 ? Shape{count, out} : Shape{out}};
    }
  }
  RandomLinear(const RandomLinear&) = delete;

 private:
  void fill_codes(Rng& rng, Element element, int64_t size, float deviation) {
    codes.resize(size);
    auto* bytes = reinterpret_cast<uint8_t*>(codes.data());
    switch (element) {
      case Element::kE2M1:
        for (auto& b : codes) b = static_cast<std::byte>(rng.bits());
        break;
      case Element::kE4M3:  // sign, exponents from the subnormals' to 4, any fraction
        for (auto& b : codes) b = static_cast<std::byte>((rng.bits() & 0x87) | rng.below(10) << 3);
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
      case Element::kF32:
        for (size_t i = 0; i < codes.size() / 4; ++i) {
          const float v = rng.normal(deviation);
          std::memcpy(bytes + 4 * i, &v, 4);
        }
    }
  }

  // Scales differ by factors of up to 8 from group to group; a few are 0.
  void fill_scales(Rng& rng, ScaleCodec codec, DType dtype, int64_t count, float deviation) {
    auto* end = &scales;
    auto append = [&](const void* data, size_t size) {
      const auto* first = static_cast<const std::byte*>(data);
      end->insert(end->end(), first, first + size);
    };
    for (int64_t i = 0; codec != ScaleCodec::kNone && i < count; ++i) {
      const bool zero = rng.below(30) == 0;
      const float value = zero ? 0 : deviation * (0.1f + 0.1f * static_cast<float>(rng.below(8)));
      uint8_t byte = static_cast<uint8_t>(119 + rng.below(4));
      if (codec == ScaleCodec::kE4M3)
        byte = zero ? 0x80 : static_cast<uint8_t>(0x20 + rng.below(40));
      const uint16_t half = f32_to_bf16(value);
      if (codec != ScaleCodec::kFloat)
        append(&byte, 1);
      else if (dtype == DType::kBF16)
        append(&half, 2);
      else
        append(&value, 4);
    }
  }
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
