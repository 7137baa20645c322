// Tables and adapter folders for the tests of the adapters room.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "base/tensor_view.h"
#include "checkpoint/linear_table.h"

namespace lk {

struct TableSizes {
  int layers = 2, experts = 3;
  int64_t hidden = 16, intermediate = 12, vocab = 40, query = 32, key_value = 16;
};

// gpt-oss: expert parameters (E, in, out), gate and up interleaved.
LinearTable gpt_oss_test_table(const TableSizes& sizes = {});
// Qwen3-MoE and the like: expert parameters (E, out, in), gate and up stacked, router "mlp.gate".
LinearTable qwen_test_table(const TableSizes& sizes = {});

// Tensors of a file under construction. Values are given as float32 and stored as the type says.
class AdapterFiles {
 public:
  std::string config = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})";

  void add(const std::string& name, Shape shape, const std::vector<float>& values,
           DType dtype = DType::kBF16);
  // Random values that bfloat16 holds.
  void add_random(const std::string& name, Shape shape, DType dtype = DType::kBF16);
  // lora_A [rank, in] and lora_B [out, rank] of `module` with random values; suffixes
  // ".lora_A.weight", ".lora_B.weight".
  void add_pair(const std::string& module, int64_t rank, int64_t in, int64_t out,
                DType dtype = DType::kBF16);
  void rename(const std::string& from, const std::string& to);
  void erase(const std::string& name) { tensors_.erase(name); }
  std::vector<std::string> names() const;

  // The safetensors file.
  std::string bytes() const;
  // Writes both files into a new folder below the test's temporary directory.
  std::string write() const;
  // Writes and loads.
  Result<std::shared_ptr<const Adapter>> load(const LinearTable& table,
                                              const AdapterLoadOptions& options = {}) const;

 private:
  struct Stored {
    DType dtype;
    Shape shape;
    std::string data;
  };
  std::map<std::string, Stored> tensors_;
  std::mt19937 random_{7};
};

std::string new_folder();
void write_text(const std::string& path, const std::string& text);

// The sentence of a load that must fail.
std::string refusal(const Result<std::shared_ptr<const Adapter>>& result);

// scale * B A of one expert as [out, in].
std::vector<float> dense_delta(const AdapterModule& module, size_t expert);

}  // namespace lk
