// Quantization recipes of JSON files against tensors: agreement, contradictions, names, and what
// the files may hold.
#include "quant/recipe.h"

#include <gtest/gtest.h>

#include "quant/name_patterns.h"
#include "tests/quant/toy_model.h"

namespace lk {
namespace {

using namespace test;  // NOLINT: the toy model's parts

struct Outcome {
  std::string error;  // empty: loaded
  std::vector<std::string> warnings;
};

Outcome outcome_of(const Tensors& tensors, const std::string& quantization,
                   const std::string& hf_quant_config = "") {
  const std::string config =
      quantization.empty()
          ? R"({"model_type": "toy"})"
          : R"({"model_type": "toy", "quantization_config": )" + quantization + "}";
  Loaded loaded(tensors, toy_table(), config, hf_quant_config);
  if (!loaded.model) return {loaded.model.error().message, {}};
  return {"", loaded.model->warnings};
}

Tensors mxfp4_experts() { return toy_base() + toy_blocks(); }

Tensors plain() {
  Tensors tensors = toy_base();
  tensors.push_back(tensor("model.layers.0.up", "BF16", {kExperts, kIn, kOut}));
  tensors.push_back(toy_blocks()[2]);
  return tensors;
}

// Attention and experts in FP8 of the given scale's shape, all experts in one tensor.
Tensors fp8(const std::vector<int64_t>& q_scale, const std::vector<int64_t>& up_scale,
            const std::string& part = "weight_scale") {
  Tensors tensors = toy_base();
  const std::string ones(4 * 64, '\x3c');  // 0x3c3c3c3c: 0.0115
  auto scale = [&](const std::string& name, const std::vector<int64_t>& shape) {
    WrittenTensor t{name, "F32", shape, ""};
    t.bytes = ones.substr(0, static_cast<size_t>(t.size()));
    return t;
  };
  for (WrittenTensor& t : tensors) {
    if (t.name == "model.layers.0.q.weight") t = tensor(t.name, "F8_E4M3", {kOut, kIn});
  }
  tensors.push_back(scale("model.layers.0.q." + part, q_scale));
  tensors.push_back(tensor("model.layers.0.up", "F8_E4M3", {kExperts, kOut, kIn}));
  tensors.push_back(scale("model.layers.0.up_" + part, up_scale));
  tensors.push_back(toy_blocks()[2]);
  return tensors;
}

void expect_quiet(const Tensors& tensors, const std::string& quantization,
                  const std::string& hf_quant_config = "") {
  const Outcome outcome = outcome_of(tensors, quantization, hf_quant_config);
  EXPECT_EQ(outcome.error, "") << quantization << hf_quant_config;
  EXPECT_TRUE(outcome.warnings.empty()) << outcome.warnings[0];
}

void expect_error(const Tensors& tensors, const std::string& quantization, const char* part,
                  const std::string& hf_quant_config = "") {
  const Outcome outcome = outcome_of(tensors, quantization, hf_quant_config);
  EXPECT_NE(outcome.error.find(part), std::string::npos) << quantization << hf_quant_config << "\n"
                                                         << outcome.error;
}

void expect_warning(const Tensors& tensors, const std::string& quantization, const char* part,
                    const std::string& hf_quant_config = "") {
  const Outcome outcome = outcome_of(tensors, quantization, hf_quant_config);
  EXPECT_EQ(outcome.error, "") << quantization;
  ASSERT_EQ(outcome.warnings.size(), 1u) << quantization;
  EXPECT_NE(outcome.warnings[0].find(part), std::string::npos) << outcome.warnings[0];
}

TEST(Recipe, Agrees) {
  expect_quiet(plain(), "");
  expect_quiet(mxfp4_experts(), R"({"quant_method": "mxfp4"})");
  expect_quiet(mxfp4_experts(), R"({"quant_method": "mxfp4", "modules_to_not_convert":
                                    ["model.layers.*.q", "model.embed", "lm_head"]})");
  // A name that stands inside the path, another root prefix, a regular expression.
  expect_quiet(mxfp4_experts(), R"({"quant_method": "mxfp4", "modules_to_not_convert": ["q"]})");
  expect_quiet(mxfp4_experts(),
               R"({"quant_method": "mxfp4", "modules_to_not_convert": ["layers.0.q"]})");
  expect_quiet(
      mxfp4_experts(),
      R"({"quant_method": "mxfp4", "modules_to_not_convert": ["model\\.layers\\.\\d+\\.q$"]})");
  // Embedding, router and head may be plain without a word.
  expect_quiet(fp8({}, {kExperts}), R"({"quant_method": "fp8", "modules_to_not_convert": []})");
  expect_quiet(fp8({}, {}), R"({"quant_method": "fp8", "activation_scheme": "static"})");
  expect_quiet(fp8({1, 1}, {kExperts, 1, 1}, "weight_scale"),
               R"({"quant_method": "fp8", "weight_block_size": [128, 128]})");
}

TEST(Recipe, CompressedTensors) {
  auto config = [](const std::string& weights, const std::string& targets,
                   const std::string& ignore) {
    return R"({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": )" +
           ignore + R"(, "config_groups": {"group_0": {"weights": )" + weights +
           R"(, "targets": )" + targets + R"(, "input_activations": {"num_bits": 8}}}})";
  };
  const std::string channel = R"({"num_bits": 8, "type": "float", "strategy": "channel"})";
  const Tensors tensors = fp8({kOut, 1}, {kExperts, kOut, 1});
  expect_quiet(tensors, config(channel, R"(["Linear"])", R"(["lm_head"])"));
  expect_quiet(tensors, config(channel, R"(["re:.*layers.*", "model.embed"])", "[]"));
  expect_error(tensors, config(channel, R"(["Linear"])", R"(["re:.*q$", "lm_head"])"),
               "says that model.layers.0.q is not quantized, but its tensors are fp8-channel (1 "
               "modules in all)");
  expect_error(tensors, config(channel, R"(["model.layers.0.q"])", "[]"),
               "says that model.layers.0.up is not quantized");
  expect_error(
      tensors,
      config(R"({"num_bits": 8, "type": "float", "strategy": "tensor"})", R"(["Linear"])", "[]"),
      "is quantized as fp8-tensor, but its tensors are fp8-channel (2 modules in all)");
  expect_error(mxfp4_experts(), config(channel, R"(["Linear"])", R"(["lm_head"])"),
               "model.layers.0.up is quantized as fp8-channel, but its tensors are mxfp4");
  expect_error(tensors,
               config(R"({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 64})",
                      R"(["Linear"])", "[]"),
               "weights of 4 bits whose scales span 1 rows and 64 channels");
  expect_error(tensors, config(R"({"num_bits": 4, "type": "int"})", R"(["Linear"])", "[]"),
               "weights of type int with 4 bits are not supported");
  expect_error(
      tensors,
      config(R"({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": false})",
             R"(["Linear"])", R"(["lm_head"])"),
      "weights with zero points (symmetric: false) are not supported");
  std::string sparse = config(channel, R"(["Linear"])", R"(["lm_head"])");
  sparse.insert(1, R"("sparsity_config": {"format": "sparse-24-bitmask"}, )");
  expect_error(tensors, sparse, "sparse weights (format \"sparse-24-bitmask\") are not supported");
  sparse.replace(sparse.find("sparse-24-bitmask"), 17, "dense");
  expect_quiet(tensors, sparse);
  expect_error(tensors, config(channel, R"(["re:("])", "[]"), "\"re:(\" is no regular expression");
  expect_error(tensors, config(channel, "3", "[]"), "targets is 3, expected a list");
  // A class that is not Linear is no module: what only it names is not quantized.
  expect_error(tensors, config(channel, R"(["Linears"])", R"(["lm_head"])"),
               "says that model.layers.0.q is not quantized, but its tensors are fp8-channel (2 "
               "modules in all); the target Linears is no module of the model");
  expect_warning(tensors, config(channel, R"(["Linear", "Attention"])", R"(["lm_head"])"),
                 "names modules that the model does not have: Attention (1 in all)");
  expect_warning(tensors, config(channel, R"(["Linear"])", R"(["Embedding"])"),
                 "names modules that the model does not have: Embedding (1 in all)");
  // Only the exact name is ignored.
  expect_warning(tensors, config(channel, R"(["Linear"])", R"(["layers.0", "model.layers.9.q"])"),
                 "names modules that the model does not have: model.layers.9.q (1 in all)");
}

// compressed-tensors says of a file, or of a group, how its tensors lie.
TEST(Recipe, CompressedTensorsPackings) {
  const auto config = [](const std::string& weights, const std::string& file_format,
                         const std::string& group_format) {
    return R"({"quant_method": "compressed-tensors", "ignore": ["lm_head", "model.layers.0.q"],
               "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"type": "float", )" +
           weights + "}" + (group_format.empty() ? "" : R"(, "format": ")" + group_format + "\"") +
           "}}" + (file_format.empty() ? "" : R"(, "format": ")" + file_format + "\"") + "}";
  };
  struct Packing {
    const char* weights;
    const char* format;
    std::vector<const char*> words;
  };
  const Packing packings[] = {
      {R"("num_bits": 4, "strategy": "group", "group_size": 32)",
       "mxfp4",
       {"mxfp4-pack-quantized"}},
      {R"("num_bits": 4, "strategy": "tensor_group", "group_size": 16)",
       "nvfp4",
       {"nvfp4-pack-quantized"}},
      {R"("num_bits": 8, "strategy": "group", "group_size": 32)", "mxfp8", {"mxfp8-quantized"}},
      {R"("num_bits": 8, "strategy": "channel")",
       "fp8-channel",
       {"float-quantized", "naive-quantized"}},
      {R"("num_bits": 8, "strategy": "tensor")",
       "fp8-tensor",
       {"float-quantized", "naive-quantized"}},
      {R"("num_bits": 8, "strategy": "block", "block_structure": [128, 128])",
       "fp8-block",
       {"float-quantized", "naive-quantized"}},
  };
  const Tensors tensors = mxfp4_experts();
  for (const Packing& packing : packings) {
    const std::string weights = packing.weights;
    // Whatever the recipe describes, these tensors are MXFP4.
    const auto expect = [&](const std::string& quantization) {
      if (packing.words[0] == std::string("mxfp4-pack-quantized"))
        expect_quiet(tensors, quantization);
      else
        expect_error(tensors, quantization, "but its tensors are mxfp4");
    };
    expect(config(weights, "", ""));
    for (const Packing& other : packings) {
      for (const char* word : other.words) {
        const bool right = std::find_if(packing.words.begin(), packing.words.end(), [&](auto own) {
                             return std::string(own) == word;
                           }) != packing.words.end();
        if (right) {
          expect(config(weights, word, ""));
          expect(config(weights, "mixed-precision", word));
          expect(config(weights, "float-quantized", word));  // the group's own counts
          continue;
        }
        const std::string part =
            fmt::format("the format \"{}\" is not that of the weights described, which are {}",
                        word, packing.format);
        expect_error(tensors, config(weights, word, ""), part.c_str());
        expect_error(tensors, config(weights, "mixed-precision", word), part.c_str());
      }
    }
    for (const char* word : {"dense", "pack-quantized", "int-quantized", "marlin-24", "secret"}) {
      expect_error(tensors, config(weights, word, ""),
                   fmt::format("the format \"{}\" is not supported; known are float-quantized, "
                               "naive-quantized, mxfp8-quantized, mxfp4-pack-quantized, "
                               "nvfp4-pack-quantized",
                               word)
                       .c_str());
    }
  }
}

// ModelOpt's NVFP4 is not compressed-tensors', whose global scale divides.
TEST(Recipe, CompressedTensorsNvfp4IsItsOwn) {
  Tensors tensors = toy_base() + Tensors{toy_blocks()[2]};
  tensors.push_back(tensor("model.layers.0.up", "U8", {kExperts, kOut, kIn / 2}));
  tensors.push_back(
      tensor("model.layers.0.up_weight_scale", "F8_E4M3", {kExperts, kOut, kIn / 16}));
  WrittenTensor two{"model.layers.0.up_weight_scale_2", "F32", {}, std::string("\0\0\x80\x3f", 4)};
  tensors.push_back(two);
  const std::string config =
      R"({"quant_method": "compressed-tensors", "ignore": ["lm_head", "model.layers.0.q"],
          "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
          "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group",
          "group_size": 16}}}})";
  expect_error(tensors, config,
               "model.layers.0.up is quantized as nvfp4-divide, but its tensors are nvfp4");
}

// A name says more than a pattern, and a pattern more than a class, wherever they stand.
TEST(Recipe, TheMostParticularGroupCounts) {
  const auto config = [](const std::string& all, const std::string& one) {
    const std::string channel = R"({"num_bits": 8, "type": "float", "strategy": "channel"})";
    const std::string tensor = R"({"num_bits": 8, "type": "float", "strategy": "tensor"})";
    return R"({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {
                "group_0": {"targets": [")" +
           all + R"("], "weights": )" + tensor + R"(}, "group_1": {"targets": [")" + one +
           R"("], "weights": )" + channel + "}}}";
  };
  const Tensors tensors = fp8({}, {kExperts, kOut, 1});
  expect_quiet(tensors, config("Linear", "re:.*up$"));
  expect_quiet(tensors, config("Linear", "model.layers.0.up"));
  expect_quiet(tensors, config("re:.*layers.*", "model.layers.0.up"));
  expect_error(tensors, config("re:.*layers.*", "Linear"),
               "model.layers.0.up is quantized as fp8-tensor");
}

TEST(Recipe, ModelOpt) {
  const Tensors tensors = fp8({}, {});
  auto file = [](const std::string& rest) {
    return R"({"producer": {"name": "modelopt"}, "quantization": {)" + rest + "}}";
  };
  expect_quiet(tensors, "", file(R"("quant_algo": "FP8", "kv_cache_quant_algo": null,
                                    "exclude_modules": ["lm_head", "model.embed*"])"));
  expect_quiet(tensors,
               R"({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_hea?"]})");
  expect_error(tensors, "", "says that model.layers.0.up is not quantized",
               file(R"("quant_algo": "FP8", "exclude_modules": ["model.layers.0.u[a-p]*"])"));
  expect_error(tensors, "", "is quantized as nvfp4, but its tensors are fp8-tensor",
               file(R"("quant_algo": "NVFP4", "group_size": 16)"));
  expect_error(tensors, "", "group_size is 32, but nvfp4 has groups of 16",
               file(R"("quant_algo": "NVFP4", "group_size": 32)"));
  expect_error(tensors, "", "group_size is 0, but nvfp4 has groups of 16",
               file(R"("quant_algo": "NVFP4", "group_size": 0)"));
  expect_error(tensors, "", "quant_algo \"W4A8_AWQ\" is not supported",
               file(R"("quant_algo": "W4A8_AWQ")"));
  const std::string mixed = R"("quant_algo": "MIXED_PRECISION", "quantized_layers": )";
  expect_quiet(tensors, "", file(mixed + R"({"model.layers.0.q": {"quant_algo": "FP8"},
                                "model.layers.0.up": {"quant_algo": "FP8"}})"));
  expect_error(tensors, "", "says that model.layers.0.up is not quantized",
               file(mixed + R"({"model.layers.0.q": {"quant_algo": "FP8"}})"));
  expect_error(tensors, "", "model.layers.0.up is quantized as nvfp4",
               file(mixed + R"({"model.layers.0.q": {"quant_algo": "FP8"},
                                "model.layers.0.up": {"quant_algo": "NVFP4"}})"));
}

TEST(Recipe, Contradictions) {
  expect_warning(mxfp4_experts(), "",
                 "config.json names no quantization, but the tensors are mxfp4");
  expect_error(plain(), R"({"quant_method": "mxfp4"})",
               "config.json says that the model is quantized (mxfp4), but no tensor is; without "
               "that recipe it loads as it stands");
  const std::string kept = R"({"quant_method": "mxfp4", "modules_to_not_convert": ["layers.0.q")";
  expect_error(plain(), kept + "]}", "is quantized (mxfp4), but no tensor is");
  expect_quiet(plain(), kept + R"(, "layers.0.up"]})");
  expect_error(plain(), R"({"quant_method": "secret"})",
               "quant_method \"secret\" is not supported; known are compressed-tensors, modelopt, "
               "fp8,");
  expect_error(mxfp4_experts(), R"({"quant_method": "gptq", "bits": 4})", "\"gptq\"");
  expect_error(mxfp4_experts(), R"({"quant_method": "fp8"})",
               "model.layers.0.up is quantized as fp8-tensor, but its tensors are mxfp4");
  expect_error(mxfp4_experts(), R"({"quant_method": 3})",
               "field quant_method is 3, expected a string");
  expect_error(mxfp4_experts(), "7", "field quantization_config is 7, expected an object");
  expect_error(mxfp4_experts(), R"({"quant_method": "mxfp4", "modules_to_not_convert": 3})",
               "modules_to_not_convert is 3, expected a list of strings");
  expect_error(mxfp4_experts(),
               R"({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers"]})",
               "says that model.layers.0.up is not quantized, but its tensors are mxfp4 (1 modules "
               "in all)");
  expect_error(mxfp4_experts(),
               R"({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})",
               "says that model.layers.0.q is quantized as mxfp4, but its tensors are f16");
  expect_error(fp8({1, 1}, {kExperts, 1, 1}),
               R"({"quant_method": "fp8", "weight_block_size": [64, 64]})",
               "whose scales span 64 rows and 64 channels");
  expect_error(fp8({}, {}), R"({"quant_method": "fp8", "weight_block_size": [128, 0]})",
               "weight_block_size is no pair of block extents");
}

TEST(Recipe, KvCacheScalesWarnOnce) {
  Tensors tensors = fp8({}, {});
  for (const char* name : {"model.layers.0.k_proj.k_scale", "model.layers.0.v_proj.v_scale",
                           "model.layers.0.self_attn.k_scale"}) {
    tensors.push_back(tensor(name, "F32", {}));
  }
  expect_warning(
      tensors, R"({"quant_method": "fp8"})",
      "3 scales of a quantized KV cache (model.layers.0.k_proj.k_scale ...) are not used");
  expect_warning(fp8({}, {}), "", "asks for a KV cache in FP8, which is not used",
                 R"({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})");
  expect_error(fp8({}, {}) + Tensors{tensor("model.layers.0.x.k_scale", "F32", {2})}, "",
               "k_scale (F32 [2]) is unknown");
}

TEST(NamePatterns, Wildcards) {
  EXPECT_TRUE(wildcard_covers("a.*.c", "a.b.c"));
  EXPECT_TRUE(wildcard_covers("a.*.c", "a.b.x.c.d"));
  EXPECT_TRUE(wildcard_covers("a.?[0-4]", "a.b3"));
  EXPECT_FALSE(wildcard_covers("a.?[!0-4]", "a.b3"));
  EXPECT_TRUE(wildcard_covers("a[", "a["));
  EXPECT_TRUE(wildcard_covers("*[]]", "x]"));
  EXPECT_FALSE(wildcard_covers("a.b", "a.bc"));
  EXPECT_FALSE(wildcard_covers("", "a"));
  EXPECT_TRUE(wildcard_covers("*", ""));
}

TEST(NamePatterns, Bounds) {
  const std::vector<std::string> many(100'001, "a");
  EXPECT_FALSE(NamePatterns::make(many, PatternStyle::kModelOpt, "list"));
  const std::vector<std::string> wild(1'001, "a*");
  EXPECT_FALSE(NamePatterns::make(wild, PatternStyle::kModelOpt, "list"));
  // Patterns that backtrack without end cover nothing, soon.
  auto slow = NamePatterns::make({"re:(a*)*(a*)*b"}, PatternStyle::kCompressedTensors, "list");
  ASSERT_TRUE(slow);
  EXPECT_FALSE(slow->covers(std::string(200, 'a') + "c.b"));
}

}  // namespace
}  // namespace lk
