// The published NVIDIA-Nemotron-3-Nano-30B-A3B, NVFP4, FP8 and BF16, by its headers alone, and as
// Transformers 5 spells it. The lists here are written from the published layout and share nothing
// with the loader.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/archs.h"
#include "quant/detect.h"
#include "quant/formats.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/model/layout_check.h"

namespace lk {
namespace {

using test::header_of;
using test::parameters;
using test::WrittenTensor;

const std::string kPattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
constexpr int kExperts = 128;

Json published_config() {
  return *parse_json(R"({
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "chunk_size": 128,
    "conv_kernel": 4, "eos_token_id": 2, "expand": 2, "head_dim": 128, "hidden_dropout": 0.0,
    "hidden_size": 2688, "initializer_range": 0.02, "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu",
    "mamba_num_heads": 64, "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
    "max_position_embeddings": 262144, "mlp_bias": false, "mlp_hidden_act": "relu2",
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1,
    "n_groups": 8, "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-05,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts_per_tok": 6,
    "num_hidden_layers": 52, "num_key_value_heads": 2, "num_logits_to_keep": 1, "pad_token_id": 0,
    "partial_rotary_factor": 1.0, "rescale_prenorm_residual": true, "residual_in_fp32": false,
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "sliding_window": null,
    "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001,
    "time_step_max": 0.1, "time_step_min": 0.001, "topk_group": 1, "torch_dtype": "bfloat16",
    "use_bias": false, "use_cache": true, "use_conv_bias": true, "vocab_size": 131072})",
                     "config.json");
}

enum class Form { kNvfp4, kFp8, kBF16, kTransformers5 };

// The Mamba layer before each attention layer keeps its weights.
bool is_plain_mamba(size_t layer) { return kPattern[layer + 1] == '*'; }

std::vector<WrittenTensor> tensors_of(Form form) {
  std::vector<WrittenTensor> tensors;
  const auto put = [&](const std::string& name, const char* dtype, std::vector<int64_t> shape) {
    tensors.push_back({name, dtype, std::move(shape), ""});
  };
  const auto bf16 = [&](const std::string& name, std::vector<int64_t> shape) {
    put(name, "BF16", std::move(shape));
  };
  const auto linear = [&](const std::string& module, int64_t out, int64_t in) {
    if (form == Form::kNvfp4) {
      put(module + ".weight", "U8", {out, in / 2});
      put(module + ".weight_scale", "F8_E4M3", {out, in / 16});
      put(module + ".weight_scale_2", "F32", {});
      put(module + ".input_scale", "F32", {});
    } else if (form == Form::kFp8) {
      put(module + ".weight", "F8_E4M3", {out, in});
      put(module + ".weight_scale", "F32", {});
      put(module + ".input_scale", "F32", {});
    } else {
      bf16(module + ".weight", {out, in});
    }
  };
  const bool quantized = form == Form::kNvfp4 || form == Form::kFp8;
  const std::string root = form == Form::kTransformers5 ? "model." : "backbone.";
  bf16(root + "embeddings.weight", {131072, 2688});
  bf16(root + "norm_f.weight", {2688});
  bf16("lm_head.weight", {131072, 2688});
  for (size_t n = 0; n < kPattern.size(); ++n) {
    const std::string layer = root + "layers." + std::to_string(n) + ".";
    const std::string mixer = layer + "mixer.";
    bf16(layer + "norm.weight", {2688});
    if (kPattern[n] == 'M') {
      if (is_plain_mamba(n)) {
        bf16(mixer + "in_proj.weight", {10304, 2688});
        bf16(mixer + "out_proj.weight", {2688, 4096});
      } else {
        linear(mixer + "in_proj", 10304, 2688);
        linear(mixer + "out_proj", 2688, 4096);
      }
      bf16(mixer + "conv1d.weight", {6144, 1, 4});
      bf16(mixer + "conv1d.bias", {6144});
      for (const char* name : {"A_log", "D", "dt_bias"}) bf16(mixer + name, {64});
      bf16(mixer + "norm.weight", {4096});
    } else if (kPattern[n] == '*') {
      bf16(mixer + "q_proj.weight", {4096, 2688});
      bf16(mixer + "k_proj.weight", {256, 2688});
      bf16(mixer + "v_proj.weight", {256, 2688});
      bf16(mixer + "o_proj.weight", {2688, 4096});
    } else {
      put(mixer + "gate.weight", quantized ? "F32" : "BF16", {kExperts, 2688});
      put(mixer + "gate.e_score_correction_bias", quantized ? "F32" : "BF16", {kExperts});
      linear(mixer + "shared_experts.up_proj", 3712, 2688);
      linear(mixer + "shared_experts.down_proj", 2688, 3712);
      if (form == Form::kTransformers5) {
        bf16(mixer + "experts.up_proj", {kExperts, 1856, 2688});
        bf16(mixer + "experts.down_proj", {kExperts, 2688, 1856});
        continue;
      }
      for (int e = 0; e < kExperts; ++e) {
        const std::string expert = mixer + "experts." + std::to_string(e) + ".";
        linear(expert + "up_proj", 1856, 2688);
        linear(expert + "down_proj", 2688, 1856);
      }
    }
  }
  return tensors;
}

// The recipe stands in a file of its own; config.json has none.
HfConfig files_of(Json config, Form form = Form::kBF16) {
  HfConfig files;
  files.config = std::make_shared<const Json>(std::move(config));
  if (form != Form::kNvfp4 && form != Form::kFp8) return files;
  Json recipe = {{"producer", {{"name", "modelopt"}, {"version", "0.29.0"}}},
                 {"quantization", {{"exclude_modules", {"lm_head"}}}}};
  Json& quantization = recipe["quantization"];
  quantization["quant_algo"] = form == Form::kNvfp4 ? "NVFP4" : "FP8";
  if (form == Form::kNvfp4) quantization["group_size"] = 16;
  for (size_t n = 0; n < kPattern.size(); ++n) {
    const std::string mixer = "backbone.layers." + std::to_string(n) + ".mixer.";
    const auto exclude = [&](const char* name) {
      quantization["exclude_modules"].push_back(mixer + name);
    };
    if (kPattern[n] == 'M') exclude("conv1d");
    if (kPattern[n] == 'M' && is_plain_mamba(n)) {
      for (const char* name : {"in_proj", "out_proj"}) exclude(name);
    } else if (kPattern[n] == '*') {
      for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) exclude(name);
    }
  }
  files.hf_quant_config = std::make_shared<const Json>(std::move(recipe));
  return files;
}

struct Release {
  Form form;
  const Format* format;  // of what is quantized
  size_t tensors, bytes;
};
const Release kReleases[] = {{Form::kNvfp4, &kFormatNvfp4, 24'147, 19'339'781'632},
                             {Form::kFp8, &kFormatFp8Tensor, 18'179, 32'679'949'312},
                             {Form::kBF16, &kFormatBF16, 6'243, 63'155'880'576},
                             {Form::kTransformers5, &kFormatBF16, 401, 63'155'880'576}};

TEST(NemotronHLayout, PublishedReleases) {
  for (const Release& release : kReleases) {
    SCOPED_TRACE(release.tensors);
    const auto tensors = tensors_of(release.form);
    EXPECT_EQ(tensors.size(), release.tensors);
    const auto checkpoint =
        Checkpoint::from_headers({header_of(tensors)}, files_of(published_config(), release.form));
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->total_bytes(), release.bytes);
    const auto table = (*find_arch("nemotron_h"))->table(checkpoint->config());
    ASSERT_TRUE(table) << table.error().message;
    const auto model = match_checkpoint(*checkpoint, *table);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_TRUE(model->warnings.empty()) << model->warnings.front();
    EXPECT_EQ(parameters(*model), 31'577'940'288);
    for (const StoredLinear& linear : model->linears) {
      const LinearSpec& spec = *linear.spec;
      const bool mamba = spec.stage == Stage::kRecurrentIn || spec.stage == Stage::kRecurrentOut;
      const bool expert = spec.stage == Stage::kExpertUp || spec.stage == Stage::kExpertDown ||
                          spec.stage == Stage::kSharedUp || spec.stage == Stage::kSharedDown;
      const bool quantized = expert || (mamba && !is_plain_mamba(spec.layer));
      const bool wide = spec.stage == Stage::kRouter && release.format != &kFormatBF16;
      EXPECT_EQ(linear.format, quantized ? release.format
                               : wide    ? &kFormatF32
                                         : &kFormatBF16)
          << spec.path();
    }
  }
}

TEST(NemotronHLayout, Decoder) {
  const auto decoder = (*find_arch("nemotron_h"))->decoder(files_of(published_config()));
  ASSERT_TRUE(decoder) << decoder.error().message;
  ASSERT_EQ(decoder->layers.size(), 52u);
  EXPECT_EQ(decoder->rope.rotary(), 0);
  for (size_t i = 0; i < 52; ++i) {
    const LayerSpec& layer = decoder->layers[i];
    EXPECT_EQ(layer.mamba.has_value(), kPattern[i] == 'M') << i;
    EXPECT_EQ(layer.attention.has_value(), kPattern[i] == '*') << i;
    EXPECT_EQ(layer.moe.has_value(), kPattern[i] == 'E') << i;
  }
  const MambaSpec& mamba = *decoder->layers[0].mamba;
  EXPECT_EQ(mamba.inner(), 4096);
  EXPECT_EQ(mamba.channels(), 6144);
  EXPECT_EQ(mamba.conv_bias, "layers.0.mixer.conv1d.bias");
  EXPECT_EQ(mamba.dt_min, 0);
  EXPECT_EQ(mamba.dt_max, std::numeric_limits<float>::infinity());
  const MoeSpec& moe = *decoder->layers[1].moe;
  EXPECT_EQ(moe.rule, RouterRule::kSigmoidThenTopK);
  EXPECT_EQ(moe.activation, Activation::kRelu2);
  EXPECT_EQ(moe.correction, "layers.1.mixer.gate.e_score_correction_bias");
  EXPECT_EQ(moe.weight_scale, 2.5f);
  EXPECT_EQ(moe.shared->intermediate, 3712);
  EXPECT_FALSE(moe.shared->gated_output);
}

// What Transformers 5 writes, and what the larger models have.
TEST(NemotronHLayout, OtherSpellingsAndSizes) {
  const auto arch = *find_arch("nemotron_h");
  Json config = published_config();
  config.erase("hybrid_override_pattern");
  config.erase("num_hidden_layers");
  config["layers_block_type"] = {"mamba", "moe",           "attention", "linear_attention",
                                 "moe",   "full_attention"};
  config["time_step_limit"] = {0.25, std::numeric_limits<double>::infinity()};
  config["moe_latent_size"] = 1024;
  config["n_group"] = 8;
  config["topk_group"] = 4;
  const auto decoder = arch->decoder(files_of(config));
  ASSERT_TRUE(decoder) << decoder.error().message;
  ASSERT_EQ(decoder->layers.size(), 6u);
  EXPECT_TRUE(decoder->layers[3].mamba && decoder->layers[5].attention);
  EXPECT_EQ(decoder->layers[0].mamba->dt_min, 0.25f);
  config["use_mamba_kernels"] = false;  // time_step_min is a bound then
  EXPECT_EQ(arch->decoder(files_of(config))->layers[0].mamba->dt_min, 0.25f);
  config.erase("time_step_limit");
  EXPECT_EQ(arch->decoder(files_of(config))->layers[0].mamba->dt_min, 0.001f);
  EXPECT_EQ(decoder->layers[1].moe->groups, 8);
  EXPECT_EQ(decoder->layers[1].moe->top_groups, 4);
  EXPECT_EQ(decoder->layers[1].moe->latent, 1024);
  const auto table = arch->table(files_of(config));
  ASSERT_TRUE(table) << table.error().message;
  const auto shape = [&](Stage stage) {
    const LinearSpec* spec = table->find(stage, 4);
    return spec ? Shape{spec->out, spec->in} : Shape{};
  };
  EXPECT_EQ(shape(Stage::kLatentIn), (Shape{1024, 2688}));
  EXPECT_EQ(shape(Stage::kLatentOut), (Shape{2688, 1024}));
  EXPECT_EQ(shape(Stage::kExpertUp), (Shape{1856, 1024}));
  EXPECT_EQ(shape(Stage::kExpertDown), (Shape{1024, 1856}));
  EXPECT_EQ(shape(Stage::kSharedUp), (Shape{3712, 2688}));
  config["n_shared_experts"] = 2;
  EXPECT_EQ(arch->decoder(files_of(config))->layers[1].moe->shared->intermediate, 7424);
  config["n_shared_experts"] = 0;
  EXPECT_FALSE(arch->decoder(files_of(config))->layers[1].moe->shared);
  EXPECT_EQ(arch->table(files_of(config))->find(Stage::kSharedUp, 4), nullptr);
}

TEST(NemotronHLayout, ScalesOfAKvCacheAndThePredictionBlockArePassedOver) {
  auto tensors = tensors_of(Form::kTransformers5);
  tensors.push_back({"model.layers.5.mixer.k_proj.k_scale", "F32", {}, ""});
  tensors.push_back({"model.layers.5.mixer.v_proj.v_scale", "F32", {}, ""});
  tensors.push_back({"mtp.layers.0.norm.weight", "BF16", {2688}, ""});
  const auto load = [&] {
    const auto checkpoint =
        Checkpoint::from_headers({header_of(tensors)}, files_of(published_config()));
    const auto table = (*find_arch("nemotron_h"))->table(checkpoint->config());
    return match_checkpoint(*checkpoint, *table);
  };
  const auto model = load();
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_EQ(model->warnings.size(), 1u);
  EXPECT_NE(model->warnings[0].find("2 scales of a quantized KV cache"), std::string::npos);
  for (const char* name : {"model.layers.0.mixer.in_proj.bias", "model.layers.1.mixer.k_scale.x"}) {
    tensors.push_back({name, "BF16", {8}, ""});
    EXPECT_ERROR(load(), name);
    tensors.pop_back();
  }
}

TEST(NemotronHLayout, WhatIsNotImplementedIsRefusedByName) {
  const auto refusal = [](const char* patch) {
    Json config = published_config();
    config.merge_patch(*parse_json(patch, "patch"));
    const auto table = (*find_arch("nemotron_h"))->table(files_of(config));
    return table ? std::string() : table.error().message;
  };
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"hybrid_override_pattern": "ME-", "num_hidden_layers": 3})",
       "1 layers are dense MLPs, which are not supported"},
      {R"({"hybrid_override_pattern": "M*", "num_hidden_layers": 2})", "no layer has experts"},
      {R"({"hybrid_override_pattern": "MX"})", "expected letters M, E, * and -"},
      {R"({"hybrid_override_pattern": null})", "hybrid_override_pattern is missing"},
      {R"({"num_hidden_layers": 50})", "num_hidden_layers is 50, but 52 layers are described"},
      {R"({"layers_block_type": ["moe", "mamba"]})", "describe other layers"},
      {R"({"layers_block_type": ["moe", "conv"]})", "layers_block_type has 'conv'"},
      {R"({"use_bias": true})", "use_bias is true, expected false"},
      {R"({"mamba_proj_bias": true})", "mamba_proj_bias is true, expected false"},
      {R"({"mlp_bias": true})", "mlp_bias is true, expected false"},
      {R"({"sliding_window": 128})", "sliding_window is set, expected null"},
      {R"({"mamba_hidden_act": "gelu"})", "mamba_hidden_act is gelu, expected silu"},
      {R"({"mlp_hidden_act": "silu"})", "mlp_hidden_act is silu, expected relu2"},
      {R"({"n_groups": 7})", "expected a multiple of n_groups = 7"},
      {R"({"n_group": 3})", "n_group is 3, expected a divisor of n_routed_experts = 128"},
      {R"({"n_group": 128})", "that leaves two"},
      {R"({"topk_group": 2})", "topk_group"},
      {R"({"n_group": 64})", "num_experts_per_tok is 6, more than the experts of 1 of 64 groups"},
      {R"({"time_step_limit": [0.1, 0.1]})", "time_step_limit"},
      {R"({"time_step_limit": [-1, 0.1]})", "time_step_limit"},
      {R"({"time_step_limit": 0.1})", "time_step_limit"},
      {R"({"moe_latent_size": 0})", "moe_latent_size"},
      {R"({"moe_shared_expert_intermediate_size": null})", "moe_shared_expert_intermediate_size"},
      {R"({"layer_norm_epsilon": null, "norm_eps": null})", "layer_norm_epsilon"},
      {R"({"routed_scaling_factor": 0})", "routed_scaling_factor"},
      {R"({"conv_kernel": 0})", "conv_kernel"},
  };
  EXPECT_EQ(refusal("{}"), "");
  EXPECT_EQ(refusal(R"({"layer_norm_epsilon": null})"), "");
  for (const auto& [patch, sentence] : kCases)
    EXPECT_NE(refusal(patch).find(sentence), std::string::npos) << patch << ": " << refusal(patch);
}

}  // namespace
}  // namespace lk
