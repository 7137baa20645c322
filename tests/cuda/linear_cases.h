// Linears and expert layers packed for the reference and for the GPU, with adapters. For tests
// only.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <numeric>

#include "kernels/cuda/linears.h"
#include "kernels/cuda/product.h"
#include "kernels/reference/reference_kernels.h"
#include "tests/cuda/on_device.h"
#include "tests/kernels/op_case.h"

namespace lk::test {

inline const std::vector<int> kRanks = {1, 3, 0, 4, 16, 64, 256};

inline cuda::Context& context() {
  // Never destroyed: cuBLASLt may be gone before statics are.
  static auto& context = *new cuda::Context(gpu());
  return context;
}

// What an expert layer finds in its scratch memory: no numbers.
inline void poison_scratch() {
  constexpr size_t kBytes = size_t{32} << 20;
  using cuda::Scratch;
  for (Scratch which : {Scratch::kShrunk, Scratch::kWorkMap, Scratch::kExpertIn,
                        Scratch::kExpertMid, Scratch::kExpertOut}) {
    cudaMemsetAsync(context().scratch<uint8_t>(which, kBytes), 0xff, kBytes, context().stream());
  }
}

struct Both {
  std::unique_ptr<Kernels> kernels = make_reference_kernels(4);
  std::vector<std::unique_ptr<RandomLora>> adapters;
  Packed reference;  // without a form
  std::unique_ptr<Weights> weights;
  std::vector<std::unique_ptr<LoraWeights>> owned;
  std::vector<const LoraWeights*> lora;
  OnDevice kept;
  Linear linear, without;
  Both(const RandomLinear& source, std::vector<std::unique_ptr<RandomLora>> all,
       const ProductForm& form = {})
      : adapters(std::move(all)),
        reference(*kernels, source, adapters),
        weights(cuda::pack_weights(gpu(), source.stored, form, false)) {
    without = {weights.get(), {}};
    pack_adapters(source.spec);
  }
  void pack_adapters(const LinearSpec& spec) {
    owned.clear();
    lora.clear();
    for (const auto& a : adapters) {
      owned.push_back(a ? cuda::pack_pairs(gpu(), spec, a->sources) : nullptr);
      lora.push_back(owned.back().get());
    }
    linear = kept.put(Linear{weights.get(), lora});
  }
};

inline bool has_width(const Format& format, int64_t in) {
  const bool float_scales = format.scale == ScaleCodec::kNone || format.scale == ScaleCodec::kFloat;
  return float_scales || in % format.group_cols == 0;
}

inline std::vector<float> rows_of(const std::vector<float>& all, int64_t rows, int64_t width) {
  return {all.begin(), all.begin() + rows * width};
}

// Rows of `a` and `b` of tokens without an adapter have the same bits.
inline void expect_base_rows(const Owned& batch, int tokens, int64_t width,
                             const std::vector<float>& a, const std::vector<float>& b) {
  for (int t = 0; t < tokens; ++t) {
    if (batch.adapter[t] >= 0) continue;
    ASSERT_EQ(0, std::memcmp(&a[t * width], &b[t * width], width * sizeof(float))) << "row " << t;
  }
}

struct ExpertShape {
  int experts, top_k;
  int64_t hidden, inner;
};

struct ExpertCase {
  const Format& format;
  ExpertShape s;
  Activation activation;
  RowOrder order;
  RandomLinear up, down;
  Both up2, down2;
  std::vector<int32_t> expert;
  std::vector<float> weight, x;
  std::unique_ptr<Owned> batch;
  static constexpr int kTokens = 320;

  // `change` alters both linears before they are packed.
  ExpertCase(Rng& rng, const Format& format, const ExpertShape& s, Activation activation,
             RowOrder order, const std::function<void(RandomLinear&)>& change = {},
             const ProductForm& form = {})
      : format(format),
        s(s),
        activation(activation),
        order(order),
        up(rng, format, Stage::kExpertUp, s.experts, (is_gated(activation) ? 2 : 1) * s.inner,
           s.hidden, order, true),
        down(rng, format, Stage::kExpertDown, s.experts, s.hidden, s.inner, RowOrder::kPlain, true),
        up2(changed(up, change), adapters_for(rng, up.spec, kRanks), form),
        down2(changed(down, change), adapters_for(rng, down.spec, {2, 0, 3, 8, 16, 64, 200}), form),
        x(rng.floats(kTokens * s.hidden, 2.0f)),
        batch(single_tokens(rng, kTokens, int(kRanks.size()))) {
    for (int t = 0; t < kTokens; ++t) {
      std::vector<int> all(s.experts);
      std::iota(all.begin(), all.end(), 0);
      for (int k = 0; k < s.top_k; ++k) {
        const int at = rng.below(static_cast<int>(all.size()) - (s.experts > 8 ? 1 : 0)) +
                       (s.experts > 8 ? 1 : 0);  // expert 0 is left without tokens
        expert.push_back(all[at]);
        all.erase(all.begin() + at);
        weight.push_back(0.1f + 0.01f * static_cast<float>(rng.below(90)));
      }
    }
  }
  static RandomLinear& changed(RandomLinear& linear,
                               const std::function<void(RandomLinear&)>& change) {
    if (change) change(linear);
    return linear;
  }
  ExpertArgs args(const Linear& u, const Linear& d) const {
    return {.experts = s.experts,
            .top_k = s.top_k,
            .intermediate = static_cast<int>(s.inner),
            .up = u,
            .down = d,
            .activation = activation,
            .alpha = 1.702f,
            .limit = 7.0f};
  }
  // By plain loops, of all tokens.
  std::vector<float> reference(const ProductForm& form = {}) {
    const Packed u(*up2.kernels, up, up2.adapters, form);
    const Packed d(*up2.kernels, down, down2.adapters, form);
    std::vector<float> residual(kTokens * s.hidden, 0.0f);
    ExpertArgs a = args(u.linear, d.linear);
    a.x = x.data();
    a.expert = expert.data();
    a.weight = weight.data();
    a.residual = residual.data();
    up2.kernels->experts(batch->batch, a);
    return residual;
  }
  // Of `tokens` tokens and as many padding ones.
  std::vector<float> run(int tokens, int padding, bool adapters) {
    OnDevice kept;
    Batch on_gpu = kept.put(batch->batch);
    on_gpu.tokens = tokens + padding;
    std::vector<int32_t> chosen(expert.begin(), expert.begin() + (tokens + padding) * s.top_k);
    std::fill(chosen.begin() + tokens * s.top_k, chosen.end(), -1);
    std::vector<float> residual(x.size(), 0.0f);
    float* out = kept.put(residual);
    ExpertArgs a = adapters ? args(up2.linear, down2.linear) : args(up2.without, down2.without);
    a.x = kept.put(x);
    a.expert = kept.put(chosen);
    a.weight = kept.put(weight);
    a.residual = out;
    poison_scratch();
    cuda::run_experts(context(), on_gpu, a);
    return OnDevice::get(out, tokens * s.hidden);
  }
};

}  // namespace lk::test
