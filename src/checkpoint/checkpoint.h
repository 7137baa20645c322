// A model folder opened for reading: tensors of one or many safetensors files, mapped, and its JSON
// files. Movable; immutable after open; safe to read from many threads.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/tensor_view.h"
#include "checkpoint/hf_config.h"

namespace lk {

class Checkpoint {
 public:
  // Opens model.safetensors, or model.safetensors.index.json and every shard that it names, plus
  // config.json, generation_config.json and hf_quant_config.json. Errors: one sentence naming the
  // file and what is wrong.
  static Result<Checkpoint> open(const std::string& folder);
  // A checkpoint without tensor data (all views have null data), from safetensors headers: for
  // tests and tools that reason about layouts too large to have at hand.
  static Result<Checkpoint> from_headers(const std::vector<std::string>& headers, HfConfig config);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const HfConfig& config() const;
  const std::string& folder() const;
  // Null if there is no such tensor.
  const TensorView* find(const std::string& name) const;
  const std::map<std::string, TensorView>& tensors() const;
  size_t total_bytes() const;  // sum of all tensors' bytes
  bool has_data() const;       // false for from_headers

 private:
  Checkpoint();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lk
