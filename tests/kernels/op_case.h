// What cases of kernel tests are made of: batches, packed linears, adapters, distances.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "tests/kernels/random_model.h"

namespace lk::test {

// Relative L2 distance that no NaN passes.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  const double d = std::sqrt(difference / (norm + 1e-30));
  return std::isfinite(d) ? d : 1e9;
}

inline std::vector<float> poisoned(int64_t n) { return std::vector<float>(n, std::nanf("")); }

struct Owned {  // flat arrays behind a Batch
  Batch batch;
  std::vector<int32_t> ids, positions, adapter, sequence, query_start, context_len, logit_rows,
      block_table;
  std::vector<int64_t> slots;
  std::vector<KvIndex> kv;

  void finish(int max_blocks) {
    batch.tokens = static_cast<int>(ids.size());
    batch.sequences = static_cast<int>(context_len.size());
    batch.logit_count = static_cast<int>(logit_rows.size());
    batch.token_ids = ids.data();
    batch.positions = positions.data();
    batch.adapter = adapter.data();
    batch.sequence = sequence.data();
    batch.query_start = query_start.data();
    batch.context_len = context_len.data();
    batch.logit_rows = logit_rows.data();
    kv = {{block_table.data(), slots.data(), max_blocks}};
    batch.kv = kv;
  }
};

// `tokens` independent one-token sequences at position 0 with random adapters of `slots`.
inline std::unique_ptr<Owned> single_tokens(Rng& rng, int tokens, int slots, int vocab = 100) {
  auto o = std::make_unique<Owned>();
  for (int t = 0; t < tokens; ++t) {
    o->ids.push_back(rng.below(vocab));
    o->positions.push_back(0);
    o->adapter.push_back(rng.below(slots + 1) - 1);
    o->sequence.push_back(t);
    o->query_start.push_back(t);
    o->context_len.push_back(1);
    o->logit_rows.push_back(t);
    o->block_table.push_back(t);
    o->slots.push_back(t * kKvBlockTokens);
  }
  o->query_start.push_back(tokens);
  o->finish(1);
  return o;
}

// All codes of a quantized element, but for NaN, in place of the random ones.
inline void put_every_code(RandomLinear& source, const Format& format) {
  if (!is_quantized(format)) return;
  for (size_t i = 0; i < source.codes.size(); ++i) {
    const auto code = static_cast<uint8_t>(i * 37 + i / 256);
    const bool nan = format.element == Element::kE4M3 && (code & 0x7f) == 0x7f;
    source.codes[i] = static_cast<std::byte>(nan ? 0x7e : code);
  }
}

// A linear packed for one Kernels, with adapters.
struct Packed {
  std::unique_ptr<Weights> weights;
  std::vector<std::unique_ptr<LoraWeights>> owned;
  std::vector<const LoraWeights*> lora;
  Linear linear;
  Packed(Kernels& kernels, const RandomLinear& source,
         const std::vector<std::unique_ptr<RandomLora>>& adapters, const ProductForm& form = {}) {
    weights = kernels.pack(source.stored, form, false);
    for (const auto& a : adapters) {
      owned.push_back(a ? kernels.pack_lora(source.spec, a->sources) : nullptr);
      lora.push_back(owned.back().get());
    }
    linear = {weights.get(), lora};
  }
};

inline std::vector<std::unique_ptr<RandomLora>> adapters_for(Rng& rng, const LinearSpec& spec,
                                                             const std::vector<int>& ranks) {
  std::vector<std::unique_ptr<RandomLora>> adapters;
  for (int rank : ranks) {
    if (rank == 0) {
      adapters.push_back(nullptr);  // an adapter that leaves this linear alone
      continue;
    }
    std::vector<int> each(std::max(spec.experts, 1), rank);
    if (spec.experts > 2)
      each[1] = 0, each[2] = rank + 1;  // one expert not adapted, one of another rank
    adapters.push_back(std::make_unique<RandomLora>(rng, spec, each));
  }
  return adapters;
}

}  // namespace lk::test
