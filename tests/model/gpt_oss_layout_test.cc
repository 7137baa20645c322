// The published gpt-oss checkpoints, by their headers alone. The lists here are written from the
// published layout and share nothing with the loader.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/arch/gpt_oss.h"
#include "quant/detect.h"
#include "quant/formats.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/model/layout_check.h"

namespace lk {
namespace {

using test::files_of;
using test::header_of;
using test::parameters;
using test::WrittenTensor;

const std::string kTinyModel = std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4";

enum class Experts { kMxfp4, kBare };

std::vector<WrittenTensor> published_tensors(int layers, int experts, Experts form) {
  std::vector<WrittenTensor> tensors;
  auto bf16 = [&](const std::string& name, std::vector<int64_t> shape) {
    tensors.push_back({name, "BF16", std::move(shape), ""});
  };
  auto u8 = [&](const std::string& name, std::vector<int64_t> shape) {
    tensors.push_back({name, "U8", std::move(shape), ""});
  };
  bf16("model.embed_tokens.weight", {201088, 2880});
  bf16("model.norm.weight", {2880});
  bf16("lm_head.weight", {201088, 2880});
  for (int n = 0; n < layers; ++n) {
    const std::string layer = "model.layers." + std::to_string(n) + ".";
    bf16(layer + "input_layernorm.weight", {2880});
    bf16(layer + "post_attention_layernorm.weight", {2880});
    bf16(layer + "self_attn.q_proj.weight", {4096, 2880});
    bf16(layer + "self_attn.q_proj.bias", {4096});
    bf16(layer + "self_attn.k_proj.weight", {512, 2880});
    bf16(layer + "self_attn.k_proj.bias", {512});
    bf16(layer + "self_attn.v_proj.weight", {512, 2880});
    bf16(layer + "self_attn.v_proj.bias", {512});
    bf16(layer + "self_attn.o_proj.weight", {2880, 4096});
    bf16(layer + "self_attn.o_proj.bias", {2880});
    bf16(layer + "self_attn.sinks", {64});
    bf16(layer + "mlp.router.weight", {experts, 2880});
    bf16(layer + "mlp.router.bias", {experts});
    if (form == Experts::kMxfp4) {
      u8(layer + "mlp.experts.gate_up_proj_blocks", {experts, 5760, 90, 16});
      u8(layer + "mlp.experts.gate_up_proj_scales", {experts, 5760, 90});
      u8(layer + "mlp.experts.down_proj_blocks", {experts, 2880, 90, 16});
      u8(layer + "mlp.experts.down_proj_scales", {experts, 2880, 90});
    } else {
      bf16(layer + "mlp.experts.gate_up_proj", {experts, 2880, 5760});
      bf16(layer + "mlp.experts.down_proj", {experts, 2880, 2880});
    }
    bf16(layer + "mlp.experts.gate_up_proj_bias", {experts, 5760});
    bf16(layer + "mlp.experts.down_proj_bias", {experts, 2880});
  }
  return tensors;
}

// Dealt out in turn, so that a layer's parts stand in different shards.
std::vector<std::string> sharded(const std::vector<WrittenTensor>& tensors, size_t shards) {
  std::vector<std::vector<WrittenTensor>> files(shards);
  for (size_t i = 0; i < tensors.size(); ++i) files[i % shards].push_back(tensors[i]);
  std::vector<std::string> headers;
  for (const auto& file : files) headers.push_back(header_of(file));
  return headers;
}

Json published_config(int layers, int experts) {
  Json config = *parse_json(R"({
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true,
    "attention_dropout": 0.0, "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880, "max_position_embeddings": 131072,
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_key_value_heads": 8,
    "output_router_logits": false, "pad_token_id": 199999,
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn",
        "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
        "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
    "swiglu_limit": 7.0, "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0",
    "use_cache": true, "vocab_size": 201088})",
                            "config.json");
  config["num_hidden_layers"] = layers;
  config["num_local_experts"] = experts;
  for (int i = 0; i < layers; ++i) {
    config["layer_types"].push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  }
  return config;
}

struct Published {
  int layers, experts;
  size_t shards;
  size_t tensors, bytes;
  int64_t parameters;
};
constexpr Published kPublished[] = {
    {24, 32, 3, 459, 13'761'264'768, 20'914'757'184},
    {36, 128, 15, 687, 65'248'815'744, 116'829'156'672},
};

TEST(GptOssLayout, PublishedModels) {
  for (const Published& size : kPublished) {
    const auto headers =
        sharded(published_tensors(size.layers, size.experts, Experts::kMxfp4), size.shards);
    auto checkpoint =
        Checkpoint::from_headers(headers, files_of(published_config(size.layers, size.experts)));
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->tensors().size(), size.tensors);
    EXPECT_EQ(checkpoint->total_bytes(), size.bytes);
    auto config = parse_gpt_oss_config(checkpoint->config());
    ASSERT_TRUE(config) << config.error().message;
    const LinearTable table = gpt_oss_linear_table(*config);
    auto model = match_checkpoint(*checkpoint, table);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_TRUE(model->warnings.empty()) << model->warnings.front();
    EXPECT_EQ(parameters(*model), size.parameters);
    for (const StoredLinear& linear : model->linears) {
      EXPECT_EQ(linear.format, linear.spec->experts > 0 ? &kFormatMxfp4 : &kFormatBF16);
    }
  }
}

TEST(GptOssLayout, BareBf16Copy) {
  const auto tensors = published_tensors(2, 32, Experts::kBare);
  Json json = published_config(2, 32);
  auto load = [&] { return Checkpoint::from_headers(sharded(tensors, 2), files_of(json)); };
  auto contradicted = load();
  ASSERT_TRUE(contradicted) << contradicted.error().message;
  const LinearTable table = gpt_oss_linear_table(*parse_gpt_oss_config(contradicted->config()));
  auto model = match_checkpoint(*contradicted, table);
  EXPECT_ERROR(model, "quantized (mxfp4), but no tensor is");
  json.erase("quantization_config");
  auto plain = load();
  model = match_checkpoint(*plain, table);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE(model->warnings.empty());
  for (const StoredLinear& linear : model->linears) {
    EXPECT_EQ(linear.format, &kFormatBF16);
    EXPECT_EQ(linear.experts[0][0].transposed, linear.spec->experts > 0);
  }
}

TEST(GptOssLayout, ExpertsApart) {
  auto tensors = published_tensors(1, 3, Experts::kBare);
  std::erase_if(tensors, [](const WrittenTensor& t) {
    return t.name.find("mlp.experts.") != std::string::npos;
  });
  const auto rest = tensors;
  const struct {
    std::vector<std::string> up;
    std::string down;
  } dialects[] = {{{"gate_up_projs.{}"}, "down_projs.{}"},
                  {{"{}.gate_proj", "{}.up_proj"}, "{}.down_proj"},
                  {{"{}.w1", "{}.w3"}, "{}.w2"}};
  for (const auto& dialect : dialects) {
    tensors = rest;
    auto add = [&](std::string name, int expert, int64_t out) {
      name.replace(name.find("{}"), 2, std::to_string(expert));
      name = "model.layers.0.mlp.experts." + name;
      tensors.push_back({name + ".weight", "BF16", {out, 2880}, ""});
      tensors.push_back({name + ".bias", "BF16", {out}, ""});
    };
    for (int expert = 0; expert < 3; ++expert) {
      for (const std::string& up : dialect.up) {
        add(up, expert, 5760 / static_cast<int64_t>(dialect.up.size()));
      }
      add(dialect.down, expert, 2880);
    }
    Json json = published_config(1, 3);
    json["num_experts_per_tok"] = 2;
    json.erase("quantization_config");
    auto checkpoint = Checkpoint::from_headers(sharded(tensors, 1), files_of(json));
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    const LinearTable table = gpt_oss_linear_table(*parse_gpt_oss_config(checkpoint->config()));
    auto model = match_checkpoint(*checkpoint, table);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(parameters(*model), 2 * 201088 * 2880 + 3 * 2880 + 2 * (4096 + 512) * 2880 + 4096 +
                                      2 * 512 + 2880 + 64 + 3 * 2881 + 3 * (5760 + 2880) * 2881);
  }
}

TEST(GptOssLayout, AnotherModelsTensorsAreRefused) {
  for (const char* field : {"num_local_experts", "num_hidden_layers", "vocab_size", "head_dim"}) {
    Json json = published_config(2, 32);
    json[field] = json[field].get<int>() + (std::string(field) == "num_hidden_layers" ? -1 : 2);
    if (std::string(field) == "num_hidden_layers") json.erase("layer_types");
    auto checkpoint = Checkpoint::from_headers(
        sharded(published_tensors(2, 32, Experts::kMxfp4), 3), files_of(json));
    auto config = parse_gpt_oss_config(checkpoint->config());
    ASSERT_TRUE(config) << config.error().message;
    const LinearTable table = gpt_oss_linear_table(*config);
    EXPECT_ERROR(match_checkpoint(*checkpoint, table), "tensor model.");
  }
}

TEST(GptOssLayout, TheSmallModelLoads) {
  auto checkpoint = Checkpoint::open(kTinyModel);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  auto config = parse_gpt_oss_config(checkpoint->config());
  ASSERT_TRUE(config) << config.error().message;
  const LinearTable table = gpt_oss_linear_table(*config);
  auto model = match_checkpoint(*checkpoint, table);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE(model->warnings.empty()) << model->warnings.front();
  ASSERT_EQ(model->linears.size(), table.linears.size());
  ASSERT_EQ(model->plain.size(), table.plain.size());
  for (size_t i = 0; i < model->linears.size(); ++i) {
    const StoredLinear& linear = model->linears[i];
    EXPECT_EQ(linear.spec, &table.linears[i]);
    EXPECT_EQ(linear.format, linear.spec->experts > 0 ? &kFormatMxfp4 : &kFormatBF16);
    EXPECT_EQ(linear.bias.shape.empty(), !linear.spec->bias);
    auto finite = check_finite(linear);
    EXPECT_TRUE(finite) << finite.error().message;
  }
  EXPECT_EQ(*checkpoint->config().eos_token_ids(), (std::vector<int32_t>{4085, 4084}));
}

}  // namespace
}  // namespace lk
