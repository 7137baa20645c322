// The published Qwen3-30B-A3B (BF16 and FP8), OLMoE-1B-7B and Mixtral-8x7B by their headers alone,
// in the published spelling and in that of Transformers 5. The lists here are written from the
// published layouts and share nothing with the loader.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/archs.h"
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

struct Published {
  std::string name, model_type;
  int layers, experts;
  int64_t hidden, inner, query, key_value, vocab, query_norm, key_norm;  // norms 0: none
  std::string moe, gate, up, down;
  int64_t parameters;
  const char* config;
};

const Published kPublished[] = {
    {"Qwen3-30B-A3B", "qwen3_moe", 48, 128, 2048, 768, 4096, 512, 151936, 128, 128, "mlp",
     "gate_proj", "up_proj", "down_proj", 30'532'122'624,
     R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
         "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
         "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
         "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
         "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
         "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
         "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
         "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
         "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
         "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
         "use_sliding_window": false, "vocab_size": 151936})"},
    {"OLMoE-1B-7B", "olmoe", 16, 64, 2048, 1024, 2048, 2048, 50304, 2048, 2048, "mlp", "gate_proj",
     "up_proj", "down_proj", 6'919'161'856,
     R"({"architectures": ["OlmoeForCausalLM"], "attention_bias": false, "clip_qkv": null,
         "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048,
         "intermediate_size": 1024, "max_position_embeddings": 4096, "model_type": "olmoe",
         "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64,
         "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16,
         "pad_token_id": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
         "tie_word_embeddings": false, "vocab_size": 50304})"},
    {"Mixtral-8x7B", "mixtral", 32, 8, 4096, 14336, 4096, 1024, 32000, 0, 0, "block_sparse_moe",
     "w1", "w3", "w2", 46'702'792'704,
     R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
         "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
         "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
         "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
         "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05,
         "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
         "vocab_size": 32000})"},
};

enum class Form { kBF16, kFused, kFp8 };

std::vector<WrittenTensor> tensors_of(const Published& m, Form form) {
  std::vector<WrittenTensor> tensors;
  const auto bf16 = [&](const std::string& name, std::vector<int64_t> shape) {
    tensors.push_back({name, "BF16", std::move(shape), ""});
  };
  const auto linear = [&](const std::string& module, int64_t out, int64_t in) {
    if (form != Form::kFp8) return bf16(module + ".weight", {out, in});
    tensors.push_back({module + ".weight", "F8_E4M3", {out, in}, ""});
    bf16(module + ".weight_scale_inv", {(out + 127) / 128, (in + 127) / 128});
  };
  bf16("model.embed_tokens.weight", {m.vocab, m.hidden});
  bf16("model.norm.weight", {m.hidden});
  bf16("lm_head.weight", {m.vocab, m.hidden});
  for (int n = 0; n < m.layers; ++n) {
    const std::string layer = "model.layers." + std::to_string(n) + ".";
    bf16(layer + "input_layernorm.weight", {m.hidden});
    bf16(layer + "post_attention_layernorm.weight", {m.hidden});
    linear(layer + "self_attn.q_proj", m.query, m.hidden);
    linear(layer + "self_attn.k_proj", m.key_value, m.hidden);
    linear(layer + "self_attn.v_proj", m.key_value, m.hidden);
    linear(layer + "self_attn.o_proj", m.hidden, m.query);
    if (m.query_norm > 0) {
      bf16(layer + "self_attn.q_norm.weight", {m.query_norm});
      bf16(layer + "self_attn.k_norm.weight", {m.key_norm});
    }
    const std::string moe = layer + (form == Form::kFused ? "mlp" : m.moe) + ".";
    bf16(moe + "gate.weight", {m.experts, m.hidden});
    if (form == Form::kFused) {
      bf16(moe + "experts.gate_up_proj", {m.experts, 2 * m.inner, m.hidden});
      bf16(moe + "experts.down_proj", {m.experts, m.hidden, m.inner});
      continue;
    }
    for (int e = 0; e < m.experts; ++e) {
      const std::string expert = moe + "experts." + std::to_string(e) + ".";
      linear(expert + m.gate, m.inner, m.hidden);
      linear(expert + m.up, m.inner, m.hidden);
      linear(expert + m.down, m.hidden, m.inner);
    }
  }
  return tensors;
}

Json config_of(const Published& m, Form form) {
  Json config = *parse_json(m.config, "config.json");
  if (form == Form::kFp8) {
    config["quantization_config"] = *parse_json(
        R"({"activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"], "fmt": "e4m3",
            "quant_method": "fp8", "weight_block_size": [128, 128]})",
        "config.json");
    for (int n = 0; n < m.layers; ++n) {
      config["quantization_config"]["modules_to_not_convert"].push_back(
          "model.layers." + std::to_string(n) + ".mlp.gate");
    }
  }
  return config;
}

void check(const Published& m, Form form) {
  SCOPED_TRACE(m.name);
  const auto checkpoint =
      Checkpoint::from_headers({header_of(tensors_of(m, form))}, files_of(config_of(m, form)));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto arch = find_arch(m.model_type);
  ASSERT_TRUE(arch) << arch.error().message;
  const auto table = (*arch)->table(checkpoint->config());
  ASSERT_TRUE(table) << table.error().message;
  const auto model = match_checkpoint(*checkpoint, *table);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE(model->warnings.empty()) << model->warnings.front();
  EXPECT_EQ(parameters(*model), m.parameters);
  for (const StoredLinear& linear : model->linears) {
    const Stage stage = linear.spec->stage;
    const bool kept =
        stage == Stage::kEmbedding || stage == Stage::kHead || stage == Stage::kRouter;
    EXPECT_EQ(linear.format, form == Form::kFp8 && !kept ? &kFormatFp8Block : &kFormatBF16)
        << linear.spec->path();
  }
  const auto decoder = (*arch)->decoder(checkpoint->config());
  ASSERT_TRUE(decoder) << decoder.error().message;
  EXPECT_EQ(decoder->layers.size(), static_cast<size_t>(m.layers));
  EXPECT_EQ(decoder->layers[0].attention->head_dim, 128);
  EXPECT_EQ(decoder->layers[0].moe->rule,
            m.model_type == "olmoe" ? RouterRule::kSoftmaxThenTopK : RouterRule::kTopKThenSoftmax);
}

TEST(AttentionMoeLayout, PublishedModels) {
  for (const Published& m : kPublished) check(m, Form::kBF16);
}

TEST(AttentionMoeLayout, AsTransformers5SavesThem) {
  for (const Published& m : kPublished) check(m, Form::kFused);
}

TEST(AttentionMoeLayout, Fp8Release) { check(kPublished[0], Form::kFp8); }

TEST(AttentionMoeLayout, MissingAndUnknownTensorsAreNamed) {
  const Published& m = kPublished[1];
  const auto load = [&](std::vector<WrittenTensor> tensors) {
    const auto checkpoint =
        Checkpoint::from_headers({header_of(tensors)}, files_of(config_of(m, Form::kBF16)));
    const auto table = (*find_arch(m.model_type))->table(checkpoint->config());
    const auto model = match_checkpoint(*checkpoint, *table);
    return model ? std::string() : model.error().message;
  };
  auto missing = tensors_of(m, Form::kBF16);
  std::erase_if(missing, [](const WrittenTensor& tensor) {
    return tensor.name == "model.layers.3.mlp.experts.7.up_proj.weight";
  });
  EXPECT_NE(load(missing).find("layers.3.mlp.experts.7.up_proj"), std::string::npos)
      << load(missing);
  auto unknown = tensors_of(m, Form::kBF16);
  unknown.push_back({"model.layers.3.mlp.shared_expert.up_proj.weight", "BF16", {8, 8}, ""});
  EXPECT_NE(load(unknown).find("model.layers.3.mlp.shared_expert.up_proj.weight"),
            std::string::npos)
      << load(unknown);
}

TEST(AttentionMoeLayout, WhatIsNotImplementedIsRefusedByName) {
  const auto refusal = [](const Published& m, const char* field, Json value) {
    Json config = config_of(m, Form::kBF16);
    config[field] = std::move(value);
    const auto table = (*find_arch(m.model_type))->table(files_of(config));
    return table ? std::string() : table.error().message;
  };
  const Published &qwen = kPublished[0], &mixtral = kPublished[2];
  EXPECT_NE(refusal(qwen, "use_sliding_window", true).find("use_sliding_window"),
            std::string::npos);
  EXPECT_NE(refusal(qwen, "decoder_sparse_step", 2).find("decoder_sparse_step"), std::string::npos);
  EXPECT_NE(refusal(qwen, "mlp_only_layers", Json::array({1})).find("mlp_only_layers"),
            std::string::npos);
  EXPECT_NE(refusal(mixtral, "hidden_act", "gelu").find("hidden_act"), std::string::npos);
  EXPECT_NE(refusal(mixtral, "num_local_experts", 0).find("num_local_experts"), std::string::npos);
  EXPECT_NE(refusal(mixtral, "num_attention_heads", 30).find("num_attention_heads"),
            std::string::npos);
}

}  // namespace
}  // namespace lk
