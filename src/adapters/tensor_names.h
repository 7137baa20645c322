// What the name of a tensor in an adapter file says, and which linear of a table a module path
// means. Immutable; thread-safe to read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "checkpoint/linear_table.h"

namespace lk {

enum class TensorRole : uint8_t {
  kA,            // .lora_A.weight
  kB,            // .lora_B.weight
  kEmbeddingA,   // .lora_embedding_A
  kEmbeddingB,   // .lora_embedding_B
  kBias,         // .lora_B.bias (lora_bias)
  kMagnitude,    // .lora_magnitude_vector (DoRA)
  kBaseWeight,   // .base_layer.weight: PEFT's copy of the frozen weight below an embedding's pair
  kRotaryTable,  // .rotary_emb.inv_freq: a constant of the architecture
  kOther,
};

struct AdapterTensorName {
  TensorRole role = TensorRole::kOther;
  // Module as the trained model calls it, without "base_model.model.", wrapper classes and
  // base_layer levels: where PEFT looks up rank_pattern ("model.layers.3.mlp.experts").
  std::string trained_path;
  // The same without any root prefix, as the table's names have it ("layers.3.mlp.experts").
  std::string path;
  int depth = 0;  // base_layer levels: nesting of parameter wrappers
};

// Where a module path or one parameter below it stands in the table.
struct LinearPlace {
  const LinearSpec* spec = nullptr;
  const LinearName* name = nullptr;

  // Output rows behind the name: all of the linear's, or its half for a gate or an up.
  int64_t rows() const { return name->part == RowPart::kAll ? spec->out : spec->out / 2; }
};

class LinearIndex {
 public:
  // Keeps pointers into `table`.
  explicit LinearIndex(const LinearTable& table);

  AdapterTensorName parse(std::string_view tensor) const;

  // The linear that is the module `path`; null spec if there is none.
  LinearPlace module(const std::string& path) const;
  struct ExpertPlace {
    LinearPlace place;
    int64_t expert = 0;  // not checked against the number of experts
  };
  // The linear of which `path` is one expert's module.
  std::optional<ExpertPlace> expert_module(const std::string& path) const;
  // Parameters that stand directly below the module `path`, in the order in which the module
  // registers them (the table's); null if there are none.
  const std::vector<LinearPlace>* parameters_of(const std::string& path) const;

  // `path` without leading root prefixes and wrappers.
  std::string without_root(std::string_view path) const;

  const LinearTable& table() const { return *table_; }

 private:
  const LinearTable* table_;
  std::unordered_set<std::string> root_segments_;
  std::unordered_map<std::string, LinearPlace> modules_;
  std::unordered_map<std::string, LinearPlace>
      expert_modules_;  // keyed by the path with "{expert}"
  std::unordered_map<std::string, std::vector<LinearPlace>> parameters_;
};

// Last segment of a dotted path.
std::string_view leaf(std::string_view path);

}  // namespace lk
