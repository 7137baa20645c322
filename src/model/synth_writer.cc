#include "model/synth_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "base/numeric.h"
#include "checkpoint/safetensors_writer.h"

namespace lk {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): one multiply-xorshift chain, good enough for weights and
// fast enough for 60 GB.
struct SplitMix {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
};

uint64_t stream_seed(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u ^ seed;  // FNV-1a
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3u;
  return SplitMix{hash}.next();
}

// Quantiles of the normal distribution; drawing one at random is a normal value without a logarithm
// for each.
const std::vector<float>& normal_table() {
  static const std::vector<float> table = [] {
    std::vector<float> values(4096);
    SplitMix random{1};
    for (size_t i = 0; i < values.size(); i += 2) {  // Box-Muller
      const double u = (static_cast<double>(random.next() >> 11) + 0.5) * 0x1p-53;
      const double v = static_cast<double>(random.next() >> 11) * 0x1p-53;
      const double radius = std::sqrt(-2 * std::log(u));
      values[i] = static_cast<float>(radius * std::cos(2 * std::numbers::pi * v));
      values[i + 1] = static_cast<float>(radius * std::sin(2 * std::numbers::pi * v));
    }
    return values;
  }();
  return table;
}

void fill(const SynthTensor& tensor, SplitMix& random, std::string& chunk) {
  const bool e4m3 = tensor.dtype == DType::kF8E4M3;
  if (tensor.dtype == DType::kU8 || e4m3) {
    for (size_t i = 0; i < chunk.size(); i += 8) {
      const uint64_t bits = random.next();
      for (size_t j = i; j < std::min(i + 8, chunk.size()); ++j) {
        auto byte = static_cast<uint8_t>(bits >> (8 * (j - i)));
        if (e4m3 && (byte & 0x7f) == 0x7f) --byte;
        chunk[j] = static_cast<char>(tensor.bytes ? byte : tensor.scale_byte + byte % 4);
      }
    }
    return;
  }
  const std::vector<float>& normals = normal_table();
  if (tensor.dtype == DType::kF32) {
    for (size_t i = 0; i + 4 <= chunk.size(); i += 4) {
      const float value = tensor.mean + tensor.deviation * normals[random.next() & 4095];
      std::memcpy(&chunk[i], &value, sizeof(value));
    }
    return;
  }
  for (size_t i = 0; i + 2 <= chunk.size(); i += 8) {
    const uint64_t bits = random.next();
    for (size_t j = i; j < std::min(i + 8, chunk.size()); j += 2) {
      const float normal = normals[(bits >> (8 * (j - i))) & 4095];
      const uint16_t value = f32_to_bf16(tensor.mean + tensor.deviation * normal);
      chunk[j] = static_cast<char>(value & 0xff);
      chunk[j + 1] = static_cast<char>(value >> 8);
    }
  }
}

// Lowers the values of a (small) tensor that lies whole in `bytes`.
void lower_by_place(float skew, SplitMix& random, std::string& bytes) {
  const size_t count = bytes.size() / sizeof(uint16_t);
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
  for (size_t k = 0; k < count; ++k) {
    char* at = bytes.data() + order[k] * sizeof(uint16_t);
    uint16_t value;
    std::memcpy(&value, at, sizeof(value));
    value = f32_to_bf16(bf16_to_f32(value) - skew * std::log1p(static_cast<float>(k)));
    std::memcpy(at, &value, sizeof(value));
  }
}

}  // namespace

Result<bool> write_random_safetensors(const std::string& folder, const std::string& stem,
                                      const std::vector<SynthTensor>& tensors, uint64_t seed,
                                      uint64_t shard_bytes,
                                      const std::function<bool(uint64_t, uint64_t)>& progress) {
  std::vector<DeclaredTensor> declared;
  for (const SynthTensor& t : tensors) declared.push_back({t.name, t.dtype, t.shape});
  LK_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::create(folder, stem, declared, shard_bytes));
  uint64_t done = 0;
  std::string chunk;
  for (size_t i = 0; i < tensors.size(); ++i) {
    SplitMix random{stream_seed(seed, tensors[i].name)};
    const uint64_t bytes = declared[i].bytes();
    for (uint64_t at = 0; at < bytes; at += chunk.size()) {
      chunk.resize(std::min<uint64_t>(bytes - at, uint64_t{8} << 20));
      fill(tensors[i], random, chunk);
      if (tensors[i].skew > 0) lower_by_place(tensors[i].skew, random, chunk);
      LK_RETURN_IF_ERROR(writer.write(i, at, std::as_bytes(std::span(chunk))));
      done += chunk.size();
      if (progress && !progress(done, writer.total_bytes())) return false;
    }
  }
  LK_RETURN_IF_ERROR(writer.finish());
  return true;
}

}  // namespace lk
