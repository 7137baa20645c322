#include "quant/detect.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "base/numeric.h"
#include "quant/formats.h"
#include "tests/quant/toy_model.h"

namespace lk {
namespace {

using namespace test;  // NOLINT: the toy model's parts

Tensors without(Tensors tensors, const std::string& name) {
  const size_t before = tensors.size();
  std::erase_if(tensors, [&](const WrittenTensor& t) { return t.name == name; });
  EXPECT_EQ(tensors.size() + 1, before) << name;
  return tensors;
}

Tensors with(Tensors tensors, const WrittenTensor& replacement) {
  for (WrittenTensor& t : tensors) {
    if (t.name == replacement.name) t = replacement;
  }
  return tensors;
}

// Gate and up of each expert as modules of their own; row i of the part holds i + 10 * expert (+
// 100 for up).
Tensors toy_parts() {
  Tensors tensors;
  for (int e = 0; e < kExperts; ++e) {
    for (const char* part : {"gate", "up"}) {
      const std::string path = fmt::format("model.layers.0.{}.{}", e, part);
      const float start = static_cast<float>(10 * e) + (part[0] == 'u' ? 100.0f : 0.0f);
      std::vector<float> weight, bias;
      for (int64_t row = 0; row < kOut / 2; ++row) {
        weight.insert(weight.end(), kIn, start + static_cast<float>(row));
        bias.push_back(start + static_cast<float>(row) + 0.5f);
      }
      auto bytes = [](const std::vector<float>& v) {
        return std::string(reinterpret_cast<const char*>(v.data()), v.size() * 4);
      };
      tensors.push_back({path + ".weight", "F32", {kOut / 2, kIn}, bytes(weight)});
      tensors.push_back({path + ".bias", "F32", {kOut / 2}, bytes(bias)});
    }
  }
  return tensors;
}

TEST(Detect, BlocksAndPlain) {
  Loaded loaded(toy_base() + toy_blocks());
  ASSERT_TRUE(loaded.model) << loaded.model.error().message;
  EXPECT_TRUE(loaded.model->linears[0].bias.shape.empty());
  EXPECT_EQ(loaded.linear(Stage::kEmbedding).format, &kFormatBF16);
  EXPECT_EQ(loaded.linear(Stage::kQuery).format, &kFormatF16);
  EXPECT_EQ(loaded.linear(Stage::kHead).format, &kFormatF32);
  const StoredLinear& up = loaded.linear(Stage::kExpertUp);
  EXPECT_EQ(up.format, &kFormatMxfp4);
  ASSERT_EQ(up.expert_count(), kExperts);
  // Expert 1, row 2: byte 0 of the row is number (1 * 4 + 2) * 32 of the tensor.
  const std::string codes = pattern(kExperts * kOut * kIn / 2, 3);
  const std::string scales = pattern(kExperts * kOut * 2, 100);
  const auto row = decoded(up, 1, 2);
  const auto code = static_cast<uint8_t>(codes[6 * 32]);
  const double scale = std::ldexp(1.0, static_cast<uint8_t>(scales[6 * 2]) - 127);
  constexpr double kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  EXPECT_EQ(row[0], kValues[code & 7] * scale * ((code & 8) ? -1 : 1));
  EXPECT_EQ(row[1], kValues[(code >> 4) & 7] * scale * ((code & 0x80) ? -1 : 1));
  EXPECT_EQ(up.tensors.size(), 3u);
  EXPECT_EQ(up.tensors[0].name, "model.layers.0.up_blocks");
}

TEST(Detect, PackedMxfp4Modules) {
  for (const char* part : {"weight_packed", "weight"}) {
    Tensors tensors = without(toy_base(), "model.layers.0.q.weight") + toy_blocks();
    tensors.push_back(tensor(std::string("model.layers.0.q.") + part, "U8", {kOut, kIn / 2}));
    tensors.push_back(tensor("model.layers.0.q.weight_scale", "U8", {kOut, kIn / 32}));
    Loaded loaded(tensors);
    ASSERT_TRUE(loaded.model) << loaded.model.error().message;
    EXPECT_EQ(loaded.linear(Stage::kQuery).format, &kFormatMxfp4);
    EXPECT_EQ(loaded.linear(Stage::kQuery).experts[0][0].row_bytes, kIn / 2);
  }
}

TEST(Detect, BareParametersAreTransposed) {
  std::vector<uint16_t>
      values;  // (E, in, out): input channel i, row r of expert e holds i + 64 r (+ 256 e), exact
  for (int e = 0; e < kExperts; ++e) {
    for (int64_t i = 0; i < kIn; ++i) {
      for (int64_t r = 0; r < kOut; ++r) {
        values.push_back(f32_to_bf16(static_cast<float>(e == 0 ? i : 4 * r)));
      }
    }
  }
  Tensors tensors = toy_base();
  tensors.push_back({"model.layers.0.up", "BF16", {kExperts, kIn, kOut}, bytes_of(values)});
  tensors.push_back(toy_blocks()[2]);
  Loaded loaded(tensors);
  ASSERT_TRUE(loaded.model) << loaded.model.error().message;
  const StoredLinear& up = loaded.linear(Stage::kExpertUp);
  EXPECT_EQ(up.format, &kFormatBF16);
  EXPECT_TRUE(up.experts[1][0].transposed);
  EXPECT_EQ(decoded(up, 0, 3)[17], 17.0f);
  EXPECT_EQ(decoded(up, 1, 3)[17], 12.0f);
  tensors[5].shape = {kExperts, kOut, kIn};
  EXPECT_ERROR(Loaded(tensors).model,
               "tensor model.layers.0.up has shape [2, 4, 64], expected [2, 64, 4]");
}

TEST(Detect, GateAndUpApart) {
  for (RowOrder order : {RowOrder::kInterleavedGateUp, RowOrder::kStackedGateUp}) {
    Loaded loaded(toy_base() + toy_parts(), toy_table(order));
    ASSERT_TRUE(loaded.model) << loaded.model.error().message;
    const StoredLinear& up = loaded.linear(Stage::kExpertUp);
    const float interleaved[] = {10, 110, 11, 111}, stacked[] = {10, 11, 110, 111};
    for (int64_t row = 0; row < kOut; ++row) {
      const float expected = order == RowOrder::kStackedGateUp ? stacked[row] : interleaved[row];
      EXPECT_EQ(decoded(up, 1, row)[5], expected);
      EXPECT_EQ(stored_bias(up, 1, row), expected + 0.5f);
    }
    EXPECT_EQ(up.bias.shape, (Shape{kExperts, kOut}));
  }
  EXPECT_ERROR(Loaded(without(toy_base() + toy_parts(), "model.layers.0.1.up.weight")).model,
               "tensor model.layers.0.1.up.weight is missing, expected [2, 64]");
  EXPECT_ERROR(Loaded(without(toy_base() + toy_parts(), "model.layers.0.1.up.bias")).model,
               "tensor model.layers.0.1.up.bias is missing, expected [2]");
  EXPECT_ERROR(Loaded(with(toy_base() + toy_parts(),
                           tensor("model.layers.0.1.up.weight", "BF16", {kOut / 2, kIn})))
                   .model,
               "is in the format bf16, but other parts of the same linear are f32");
}

TEST(Detect, ExpertModules) {
  Tensors tensors = toy_base();
  for (int e = 0; e < kExperts; ++e) {
    const std::string path = fmt::format("model.layers.0.ups.{}", e);
    tensors.push_back(tensor(path + ".weight", "BF16", {kOut, kIn}, e));
    tensors.push_back({path + ".bias",
                       "BF16",
                       {kOut},
                       bytes_of(std::vector<uint16_t>(kOut, e ? 0x4000 : 0x3f80))});
  }
  Loaded loaded(tensors);
  ASSERT_TRUE(loaded.model) << loaded.model.error().message;
  const StoredLinear& up = loaded.linear(Stage::kExpertUp);
  EXPECT_EQ(stored_bias(up, 0, 3), 1.0f);
  EXPECT_EQ(stored_bias(up, 1, 3), 2.0f);
  EXPECT_FALSE(up.experts[0][0].transposed);
}

TEST(Detect, EveryMissingTensorIsNamed) {
  const Tensors all = toy_base() + toy_blocks();
  for (const WrittenTensor& t : all) {
    Loaded loaded(without(all, t.name));
    EXPECT_ERROR(loaded.model, t.name);
    EXPECT_ERROR(loaded.model, "missing");
  }
}

TEST(Detect, EveryWrongShapeAndTypeIsNamed) {
  const Tensors all = toy_base() + toy_blocks();
  for (const WrittenTensor& t : all) {
    WrittenTensor wrong = t;
    wrong.shape.back() += 1;
    wrong.bytes.clear();
    Loaded loaded(with(all, wrong));
    EXPECT_ERROR(loaded.model, t.name + " has shape");
    wrong = t;
    wrong.dtype = "I16";
    wrong.bytes.clear();
    EXPECT_ERROR(Loaded(with(all, wrong)).model, t.name + " has dtype I16");
  }
}

TEST(Detect, UnknownAndIgnoredTensors) {
  const Tensors all = toy_base() + toy_blocks();
  EXPECT_ERROR(Loaded(all + Tensors{tensor("model.extra", "U8", {3})}).model,
               "tensor model.extra (U8 [3]) is unknown to the architecture toy");
  // Both forms of one weight contradict each other.
  EXPECT_ERROR(
      Loaded(all + Tensors{tensor("model.layers.0.up", "BF16", {kExperts, kIn, kOut})}).model,
      "tensor model.layers.0.up (BF16 [2, 64, 4]) is unknown");
  EXPECT_ERROR(Loaded(all + Tensors{tensor("lm_head.bias", "F32", {kWidth})}).model,
               "tensor lm_head.bias");
  EXPECT_TRUE(Loaded(all + Tensors{tensor("mtp.anything", "I64", {3})}).model);
}

TEST(Detect, OtherRootPrefix) {
  Tensors tensors = toy_base() + toy_blocks();
  for (WrittenTensor& t : tensors) {
    if (t.name.rfind("model.", 0) == 0) t.name = t.name.substr(6);
  }
  EXPECT_TRUE(Loaded(tensors).model);
}

TEST(Detect, UnsupportedLayoutsAreNamed) {
  struct Case {
    WrittenTensor extra;
    const char* weight;  // dtype of q.weight, or null for none
    const char* sentence;
  };
  const std::string q = "model.layers.0.q.";
  const Case cases[] = {
      {tensor(q + "weight_scale", "F32", {}), "F8_E5M2", "q.weight is in the format FP8 E5M2,"},
      {tensor(q + "qweight", "I32", {8, 4}), nullptr, "packed integers"},
      {tensor(q + "weight_packed", "I32", {4, 8}), nullptr, "packed integers"},
      {tensor(q + "weight.absmax", "F32", {4}), "U8", "bitsandbytes"},
      {tensor("mtp.x", "U8", {1}), "U8", "q.weight has dtype U8, which is no weight format"},
  };
  for (const Case& c : cases) {
    Tensors tensors = without(toy_base(), q + "weight") + toy_blocks();
    tensors.push_back(c.extra);
    if (c.weight) tensors.push_back(tensor(q + "weight", c.weight, {kOut, kIn}));
    Loaded loaded(tensors);
    EXPECT_ERROR(loaded.model, c.sentence);
    ASSERT_FALSE(loaded.model);
    EXPECT_EQ(loaded.model.error().kind, ErrorKind::kUnsupported);
  }
}

TEST(Detect, NarrowLinearsAreNoMxfp4) {
  LinearTable table = toy_table();
  table.linears[2].in = 48;
  EXPECT_ERROR(Loaded(toy_base() + toy_blocks(), table).model,
               "model.layers.0.up is 48 channels wide, but mxfp4 needs a multiple of 32");
}

TEST(Detect, TiedHead) {
  LinearTable table = toy_table();
  table.tied_head = true;
  const Tensors all = toy_base() + toy_blocks();
  Loaded loaded(without(all, "lm_head.weight"), table);
  ASSERT_TRUE(loaded.model) << loaded.model.error().message;
  const StoredLinear& head = loaded.linear(Stage::kHead);
  EXPECT_EQ(head.spec->stage, Stage::kHead);
  EXPECT_EQ(head.format, &kFormatBF16);
  EXPECT_EQ(decoded(head, 0, 3), decoded(loaded.linear(Stage::kEmbedding), 0, 3));
  // A copy in the file is known, but the embedding is what counts.
  Loaded both(all, table);
  ASSERT_TRUE(both.model) << both.model.error().message;
  EXPECT_EQ(both.linear(Stage::kHead).format, &kFormatBF16);
  ASSERT_FALSE(both.model->warnings.empty());
  EXPECT_NE(both.model->warnings[0].find("tie_word_embeddings, but the file holds lm_head.weight"),
            std::string::npos)
      << both.model->warnings[0];
}

TEST(Detect, ArchitecturesBelongToTheModelType) {
  const auto told = [](const std::string& architectures) {
    const Loaded loaded(toy_base() + toy_blocks(), toy_table(),
                        R"({"model_type": "toy", "quantization_config": {"quant_method": "mxfp4"},
                            "architectures": )" +
                            architectures + "}");
    EXPECT_TRUE(loaded.model) << loaded.model.error().message;
    return loaded.model ? fmt::format("{}", fmt::join(loaded.model->warnings, "; ")) : "";
  };
  EXPECT_EQ(told("null"), "");
  EXPECT_EQ(told(R"(["ToyForCausalLM"])"), "");
  EXPECT_EQ(told(R"(["ToyForCausalLM", "LlamaForCausalLM"])"),
            "config.json: architectures names LlamaForCausalLM, but model_type is toy, which is "
            "followed");
  EXPECT_NE(told("7"), "");
}

}  // namespace
}  // namespace lk
