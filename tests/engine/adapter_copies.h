// Copies of an adapter's folder with the ranks of every pair in another order: the same function in
// other bytes, so another identity whose right answers are known.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"

namespace lk {

inline std::string file_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// The bytes of a safetensors file of two-dimensional tensors with the ranks of each pair permuted;
// `rank` is that of one expert. Seed 0 changes nothing. Layout: row e * rank + k of lora_A and
// column k * experts + e of lora_B are rank k of expert e.
inline std::string permute_ranks(std::string file, int64_t rank, unsigned seed) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const Json header = Json::parse(file.substr(8, length));
  char* data = file.data() + 8 + length;
  std::mt19937 random(seed);
  for (const auto& [name, entry] : header.items()) {
    const size_t at = name.find(".lora_A.");
    if (at == name.npos) continue;
    const Json& other = header.at(name.substr(0, at) + ".lora_B." + name.substr(at + 8));
    const int64_t rows = entry["shape"][0], outs = other["shape"][0], experts = rows / rank;
    const size_t element = entry["dtype"] == "F32" ? 4 : 2;
    const size_t row_bytes = entry["shape"][1].get<size_t>() * element;
    std::vector<int64_t> order(rank);
    std::iota(order.begin(), order.end(), 0);
    if (seed > 0) std::shuffle(order.begin(), order.end(), random);
    char* a = data + entry["data_offsets"][0].get<size_t>();
    char* b = data + other["data_offsets"][0].get<size_t>();
    const std::string old_a(a, rows * row_bytes), old_b(b, outs * rows * element);
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t k = 0; k < rank; ++k) {
        std::memcpy(a + (e * rank + k) * row_bytes,
                    old_a.data() + (e * rank + order[k]) * row_bytes, row_bytes);
        for (int64_t o = 0; o < outs; ++o)
          std::memcpy(b + (o * rows + k * experts + e) * element,
                      old_b.data() + (o * rows + order[k] * experts + e) * element, element);
      }
    }
  }
  return file;
}

// Writes the permuted copy of `from` to the folder `to`, which may exist.
inline void copy_adapter(const std::string& from, const std::string& to, unsigned seed) {
  ::mkdir(to.c_str(), 0700);
  const std::string config = file_text(from + "/adapter_config.json");
  const int64_t rank = Json::parse(config)["r"];
  write_file(to + "/adapter_config.json", config);
  write_file(to + "/adapter_model.safetensors",
             permute_ranks(file_text(from + "/adapter_model.safetensors"), rank, seed));
}

}  // namespace lk
