#include "adapters/adapter_build.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "base/aligned_buffer.h"

namespace lk {
namespace {

// One expert's parts on the way to one pair.
struct GateAndUp {
  LoraPair gate, up;
};

// gate and up are one pair with one scale; where theirs differ, the ratio goes into B.
struct SharedScale {
  float scale = 0, gate_factor = 1, up_factor = 1;
};

SharedScale share(float gate, float up) {
  if (gate == up) return {gate, 1, 1};
  const float base = gate != 0 ? gate : up;
  return {base, gate / base, up / base};
}

// Fetches the values of a pair into memory that the next pair uses again, so that a large file
// neither has its pages mapped one by one nor lies in memory as a whole.
class ValueReader {
 public:
  explicit ValueReader(const ReadTensor& read) : read_(read) {}

  // The pair with data, which stay until the next call.
  Result<RawPair> fetch(RawPair pair) {
    if (!read_) return pair;
    const size_t a_bytes = pair.a.bytes(), b_bytes = pair.b.bytes();
    // B starts where its largest type may.
    const size_t b_begin = (a_bytes + 63) / 64 * 64;
    buffer_.reserve(b_begin + b_bytes);
    LK_RETURN_IF_ERROR(read_(pair.a_name, {buffer_.data(), a_bytes}));
    LK_RETURN_IF_ERROR(read_(pair.b_name, {buffer_.data() + b_begin, b_bytes}));
    pair.a.data = buffer_.data();
    pair.b.data = buffer_.data() + b_begin;
    return pair;
  }

 private:
  const ReadTensor& read_;
  AlignedBuffer buffer_;
};

class ModuleBuilder {
 public:
  ModuleBuilder(const LinearSpec& spec, ValueReader& values) : values_(values) {
    module_.spec = &spec;
    module_.experts.resize(static_cast<size_t>(std::max(spec.experts, 1)));
  }

  Result<AdapterModule> build(std::span<const PlannedPair> pairs) {
    // Scales first: the factor of each half is applied while it is read.
    std::vector<std::pair<float, float>> scales(module_.experts.size(), {0.f, 0.f});
    std::vector<unsigned> present(module_.experts.size());
    for (const PlannedPair& pair : pairs) {
      for_experts(pair, [&](size_t e, size_t) {
        const RowPart part = pair.place.name->part;
        if (part != RowPart::kUp) scales[e].first = pair.scale;
        if (part != RowPart::kGate) scales[e].second = pair.scale;
        present[e] |= part == RowPart::kGate ? 1u : part == RowPart::kUp ? 2u : 3u;
      });
    }
    for (size_t e = 0; e < scales.size(); ++e) {
      if (present[e] == 1u) scales[e].second = scales[e].first;
      if (present[e] == 2u) scales[e].first = scales[e].second;
    }
    std::vector<GateAndUp> halves;
    for (const PlannedPair& pair : pairs) {
      const RowPart part = pair.place.name->part;
      const size_t first = pair.expert < 0 ? 0 : static_cast<size_t>(pair.expert);
      const SharedScale shared = share(scales[first].first, scales[first].second);
      const float factor = part == RowPart::kUp     ? shared.up_factor
                           : part == RowPart::kGate ? shared.gate_factor
                                                    : 1;
      LK_ASSIGN_OR_RETURN(const RawPair raw, values_.fetch(pair.raw));
      LK_ASSIGN_OR_RETURN(std::vector<LoraPair> values,
                          extract_pairs(raw, {pair.experts, pair.swapped, factor}));
      if (part != RowPart::kAll && halves.empty()) halves.resize(module_.experts.size());
      for_experts(pair, [&](size_t e, size_t i) {
        values[i].scale = part == RowPart::kAll ? pair.scale : shared.scale;
        LoraPair& slot = part == RowPart::kAll    ? module_.experts[e]
                         : part == RowPart::kGate ? halves[e].gate
                                                  : halves[e].up;
        slot = std::move(values[i]);
      });
    }
    for (size_t e = 0; e < halves.size(); ++e) {
      GateAndUp part = std::move(halves[e]);
      if (part.gate.rank + part.up.rank == 0) continue;
      module_.experts[e] = fuse_gate_up(part.gate.rank > 0 ? &part.gate : nullptr,
                                        part.up.rank > 0 ? &part.up : nullptr, module_.spec->out,
                                        module_.spec->row_order);
    }
    return std::move(module_);
  }

 private:
  template <typename Each>
  void for_experts(const PlannedPair& pair, Each each) const {
    const size_t begin = pair.expert < 0 ? 0 : static_cast<size_t>(pair.expert);
    const size_t count = pair.expert < 0 ? module_.experts.size() : 1;
    for (size_t i = 0; i < count; ++i) each(begin + i, i);
  }

  AdapterModule module_;
  ValueReader& values_;
};

uint64_t hash_values(const std::vector<uint16_t>& values) {
  return XXH3_64bits(values.data(), values.size() * sizeof(uint16_t));
}

// Appends the module's part of the identity; a hash of values at a time, while they are in the
// cache.
void append_identity(const AdapterModule& module, std::vector<uint64_t>& words) {
  words.push_back(uint64_t{static_cast<uint8_t>(module.spec->stage)} << 32 |
                  static_cast<uint32_t>(module.spec->layer));
  words.push_back(module.experts.size());
  for (const LoraPair& pair : module.experts) {
    words.push_back(uint64_t{static_cast<uint32_t>(pair.rank)} << 32 |
                    std::bit_cast<uint32_t>(pair.scale));
    words.push_back(hash_values(pair.a));
    words.push_back(hash_values(pair.b));
  }
}

uint64_t identity_of(const std::vector<uint64_t>& words) {
  const uint64_t hash = XXH3_64bits(words.data(), words.size() * sizeof(uint64_t));
  return hash != 0 ? hash : 1;
}

bool does_nothing(const std::vector<AdapterModule>& modules) {
  const auto zero = [](uint16_t value) { return (value & 0x7fffu) == 0; };
  for (const AdapterModule& module : modules) {
    for (const LoraPair& pair : module.experts) {
      if (pair.scale != 0 && !std::all_of(pair.b.begin(), pair.b.end(), zero)) return false;
    }
  }
  return true;
}

}  // namespace

uint64_t adapter_identity(const std::vector<AdapterModule>& modules) {
  std::vector<uint64_t> words;
  for (const AdapterModule& module : modules) append_identity(module, words);
  return identity_of(words);
}

Result<std::shared_ptr<Adapter>> build_adapter(AdapterPlan plan, const ReadTensor& read) {
  ValueReader values(read);
  auto adapter = std::make_shared<Adapter>();
  std::vector<uint64_t> words;
  for (size_t i = 0; i < plan.pairs.size();) {
    const LinearSpec* spec = plan.pairs[i].place.spec;
    size_t end = i;
    while (end < plan.pairs.size() && plan.pairs[end].place.spec == spec) ++end;
    LK_ASSIGN_OR_RETURN(AdapterModule module,
                        ModuleBuilder(*spec, values).build({&plan.pairs[i], end - i}));
    append_identity(module, words);
    adapter->modules.push_back(std::move(module));
    i = end;
  }
  adapter->identity = identity_of(words);
  adapter->not_adapted = std::move(plan.not_adapted);
  adapter->warnings = std::move(plan.warnings);
  if (does_nothing(adapter->modules)) {
    adapter->warnings.emplace_back("every lora_B or scale is zero: the adapter does nothing");
  }
  return adapter;
}

}  // namespace lk
