// One LoRA adapter in the form that the model uses, whatever dialect its files spoke. Immutable
// after load; shared by pointer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/linear_table.h"

namespace lk {

// One LoRA pair: the linear's matrix [out, in] gains scale * B A, so its output gains scale * B (A
// x). Values are bfloat16, standard orientation (A on the input side). The embedding's matrix is
// [vocabulary, hidden]: token t gains scale * b[t] A.
struct LoraPair {
  int rank = 0;
  float scale = 0;          // alpha / r, or alpha / sqrt(r) with rsLoRA; per module
  std::vector<uint16_t> a;  // [rank, in]
  std::vector<uint16_t> b;  // [out, rank], rows in the spec's row order
};

// What the adapter adds to one linear. Experts without a pair get no delta (rank 0).
struct AdapterModule {
  const LinearSpec* spec = nullptr;
  std::vector<LoraPair> experts;  // [max(spec->experts, 1)]
  int max_rank() const;
};

struct Adapter {
  std::string name;  // as the operator calls it; no part of the identity
  std::string path;
  uint64_t identity = 0;               // hash of tensors and effective configuration
  std::vector<AdapterModule> modules;  // at most one for each linear, in table order
  std::vector<std::string>
      not_adapted;  // modules that target_modules matches but the file has no tensors for
  std::vector<std::string> warnings;

  const AdapterModule* find(Stage stage, int layer) const;
  size_t bytes() const;  // A and B as held in memory
  // Modules, experts, ranks, scales, bytes; what was applied, for people and for --json.
  OrderedJson describe() const;
};

// Which side of a square expert matrix lora_A sits on, when neither shapes nor peft_version decide.
enum class ExpertOrientation : uint8_t { kAuto, kStandard, kSwapped };

struct AdapterLoadOptions {
  ExpertOrientation orientation = ExpertOrientation::kAuto;
  int max_rank = 256;
};

// Whether the folder holds the two files of an adapter. Errors: kNotFound for what is not there,
// kInvalid or kUnsupported for what is there instead; the sentence does not name the folder.
Status check_adapter_folder(const std::string& folder);

// Loads a PEFT folder (adapter_config.json, adapter_model.safetensors) for the model of `table`,
// whole or not at all. Errors: one sentence naming the tensor or field, expected and found. Pickles
// are never opened. Thread-safe. The adapter keeps pointers into `table`, which must outlive it.
Result<std::shared_ptr<const Adapter>> load_peft_adapter(const std::string& folder,
                                                         const std::string& name,
                                                         const LinearTable& table,
                                                         const AdapterLoadOptions& options);

}  // namespace lk
