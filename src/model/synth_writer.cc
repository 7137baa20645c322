#include "model/synth_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/json.h"
#include "base/numeric.h"

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
  if (tensor.dtype == DType::kU8) {
    for (size_t i = 0; i < chunk.size(); i += 8) {
      const uint64_t bits = random.next();
      for (size_t j = i; j < std::min(i + 8, chunk.size()); ++j) {
        const auto byte = static_cast<uint8_t>(bits >> (8 * (j - i)));
        chunk[j] = static_cast<char>(tensor.bytes ? byte : tensor.scale_byte + byte % 4);
      }
    }
    return;
  }
  const std::vector<float>& normals = normal_table();
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

uint64_t tensor_bytes(const SynthTensor& t) {
  return TensorView{nullptr, t.dtype, t.shape}.bytes();
}

Status write_shard(const std::string& path, const SynthTensor* begin, const SynthTensor* end,
                   uint64_t seed, const std::function<void(uint64_t)>& wrote) {
  OrderedJson header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (const SynthTensor* t = begin; t != end; ++t) {
    const uint64_t bytes = tensor_bytes(*t);
    header[t->name] = {{"dtype", dtype_name(t->dtype)},
                       {"shape", t->shape},
                       {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  const uint64_t size = text.size();
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::string chunk;
  for (const SynthTensor* t = begin; t != end; ++t) {
    SplitMix random{stream_seed(seed, t->name)};
    for (uint64_t left = tensor_bytes(*t); left > 0;) {
      chunk.resize(std::min<uint64_t>(left, uint64_t{8} << 20));
      fill(*t, random, chunk);
      file.write(chunk.data(), static_cast<std::streamsize>(chunk.size()));
      if (!file) return fail(ErrorKind::kResource, "cannot write {}: is the disk full?", path);
      left -= chunk.size();
      wrote(chunk.size());
    }
  }
  file.close();
  if (!file) return fail(ErrorKind::kResource, "cannot write {}: is the disk full?", path);
  return {};
}

}  // namespace

Status write_random_safetensors(const std::string& folder, const std::string& stem,
                                const std::vector<SynthTensor>& tensors, uint64_t seed,
                                uint64_t shard_bytes,
                                const std::function<void(uint64_t, uint64_t)>& progress) {
  uint64_t total = 0, done = 0;
  for (const SynthTensor& t : tensors) total += tensor_bytes(t);
  std::vector<size_t> starts = {0};
  uint64_t in_shard = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensor_bytes(tensors[i]);
    if (in_shard > 0 && in_shard + bytes > shard_bytes) {
      starts.push_back(i);
      in_shard = 0;
    }
    in_shard += bytes;
  }
  const size_t shards = starts.size();
  OrderedJson map = OrderedJson::object();
  for (size_t s = 0; s < shards; ++s) {
    const std::string name =
        shards == 1 ? stem + ".safetensors"
                    : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, s + 1, shards);
    const size_t end = s + 1 < shards ? starts[s + 1] : tensors.size();
    for (size_t i = starts[s]; i < end; ++i) map[tensors[i].name] = name;
    LK_RETURN_IF_ERROR(write_shard(folder + "/" + name, &tensors[starts[s]], tensors.data() + end,
                                   seed, [&](uint64_t n) {
                                     done += n;
                                     if (progress) progress(done, total);
                                   }));
  }
  if (shards == 1) return {};
  std::ofstream index(folder + "/" + stem + ".safetensors.index.json");
  index << OrderedJson{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(1) << "\n";
  index.close();
  if (!index) return fail(ErrorKind::kResource, "cannot write the index of {}", folder);
  return {};
}

}  // namespace lk
