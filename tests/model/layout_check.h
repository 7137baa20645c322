// What the header-only tests of published checkpoints share: files from a config alone, and how
// many parameters the loader found in a list of tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/hf_config.h"
#include "quant/detect.h"

namespace lk::test {

inline HfConfig files_of(Json config) {
  HfConfig files;
  files.config = std::make_shared<const Json>(std::move(config));
  return files;
}

// Of linears, their biases and plain tensors; scales do not count.
inline int64_t parameters(const StoredModel& model) {
  int64_t sum = 0;
  for (const StoredLinear& linear : model.linears) {
    for (const auto& parts : linear.experts) {
      for (const StoredMatrix& matrix : parts) sum += matrix.rows * matrix.cols;
    }
    if (!linear.bias.shape.empty()) sum += linear.bias.elements();
  }
  for (const TensorView& tensor : model.plain) sum += tensor.elements();
  return sum;
}

}  // namespace lk::test
