// A made-up architecture with one linear of each kind, and its tensors in every layout. For tests
// of the quant room.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "quant/detect.h"
#include "tests/checkpoint/safetensors_writer.h"

namespace lk::test {

inline constexpr int kExperts = 2;
inline constexpr int64_t kOut = 4, kIn = 64, kWidth = 8;

inline LinearTable toy_table(RowOrder order = RowOrder::kInterleavedGateUp) {
  LinearTable table;
  table.architecture = "toy";
  table.prefixes = {"model.", ""};
  table.rootless = {"lm_head"};
  table.ignored = {"mtp."};
  table.linears = {
      {.stage = Stage::kEmbedding, .out = kWidth, .in = kIn, .names = {{"embed"}}},
      {.stage = Stage::kQuery,
       .layer = 0,
       .out = kOut,
       .in = kIn,
       .bias = true,
       .names = {{"layers.0.q"}}},
      {.stage = Stage::kExpertUp,
       .layer = 0,
       .experts = kExperts,
       .out = kOut,
       .in = kIn,
       .row_order = order,
       .bias = true,
       .names = {{"layers.0.up", NameForm::kParameterInOut, RowPart::kAll},
                 {"layers.0.ups.{expert}", NameForm::kExpertModule, RowPart::kAll},
                 {"layers.0.{expert}.gate", NameForm::kExpertModule, RowPart::kGate},
                 {"layers.0.{expert}.up", NameForm::kExpertModule, RowPart::kUp}}},
      {.stage = Stage::kHead, .out = kWidth, .in = kIn, .names = {{"lm_head"}}},
  };
  table.plain = {{"norm.weight", {kIn}}};
  return table;
}

// Bytes 0, 1, 2, ... modulo 95: no pair is a bfloat16 from 2^64 on, nor a byte a scale of 255.
inline std::string pattern(int64_t size, int start = 0) {
  std::string bytes(static_cast<size_t>(size), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>((start + i) % 95);
  return bytes;
}

inline WrittenTensor tensor(std::string name, std::string dtype, std::vector<int64_t> shape,
                            int start = 0) {
  WrittenTensor t{std::move(name), std::move(dtype), std::move(shape), ""};
  t.bytes = pattern(t.size(), start);
  return t;
}

using Tensors = std::vector<WrittenTensor>;

inline Tensors toy_base() {
  return {tensor("model.embed.weight", "BF16", {kWidth, kIn}),
          tensor("model.layers.0.q.weight", "F16", {kOut, kIn}),
          tensor("model.layers.0.q.bias", "F32", {kOut}),
          tensor("lm_head.weight", "F32", {kWidth, kIn}),
          tensor("model.norm.weight", "BF16", {kIn})};
}

inline Tensors operator+(Tensors a, const Tensors& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Tensors toy_blocks() {
  return {tensor("model.layers.0.up_blocks", "U8", {kExperts, kOut, kIn / 32, 16}, 3),
          tensor("model.layers.0.up_scales", "U8", {kExperts, kOut, kIn / 32}, 100),
          tensor("model.layers.0.up_bias", "BF16", {kExperts, kOut}, 5)};
}

// A checkpoint in memory's stead: written to a folder, opened, matched.
struct Loaded {
  explicit Loaded(const Tensors& tensors, LinearTable toy = toy_table(),
                  const std::string& config = R"({"model_type": "toy"})",
                  const std::string& hf_quant_config = "")
      : table(std::move(toy)) {
    folder.write("config.json", config);
    if (!hf_quant_config.empty()) folder.write("hf_quant_config.json", hf_quant_config);
    folder.write("model.safetensors", file_of(tensors));
    auto opened = Checkpoint::open(folder.path());
    if (!opened) {
      model = tl::unexpected<Error>(opened.error());
      return;
    }
    checkpoint = std::make_unique<Checkpoint>(std::move(*opened));
    model = match_checkpoint(*checkpoint, table);
  }
  const StoredLinear& linear(Stage stage) const {
    for (const StoredLinear& linear : model->linears) {
      if (linear.spec->stage == stage) return linear;
    }
    std::abort();
  }

  LinearTable table;
  TempFolder folder;
  std::unique_ptr<Checkpoint> checkpoint;
  Result<StoredModel> model = StoredModel();
};

inline std::vector<float> decoded(const StoredLinear& linear, int expert, int64_t row) {
  const StoredRow stored = stored_row(linear, expert, row);
  std::vector<float> values(static_cast<size_t>(stored.matrix->cols));
  decode_row(*linear.format, *stored.matrix, stored.row, values.data());
  return values;
}

}  // namespace lk::test
