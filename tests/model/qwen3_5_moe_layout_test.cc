// The published Qwen3.6-35B-A3B, BF16 and FP8, by its headers alone, as the whole that also sees
// and as a text model. The lists here are written from the published layout and share nothing with
// the loader.
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

constexpr int kLayers = 40, kExperts = 256;

const char* const kTextConfig = R"({
  "attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true,
  "bos_token_id": 248044, "dtype": "bfloat16", "eos_token_id": 248044,
  "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
  "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "mlp_only_layers": [],
  "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 512, "mtp_num_hidden_layers": 1,
  "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8,
  "num_hidden_layers": 40, "num_key_value_heads": 2, "output_router_logits": false,
  "pad_token_id": null, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
  "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
    "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
  "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512,
  "tie_word_embeddings": false, "use_cache": true, "vocab_size": 248320})";

Json whole_config() {
  Json config = *parse_json(
      R"({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "image_token_id": 248056,
          "model_type": "qwen3_5_moe", "tie_word_embeddings": false,
          "vision_config": {"depth": 27, "hidden_size": 1152, "model_type": "qwen3_5_moe"}})",
      "config.json");
  config["text_config"] = *parse_json(kTextConfig, "config.json");
  return config;
}

Json text_config() {
  Json config = *parse_json(kTextConfig, "config.json");
  config["architectures"] = {"Qwen3_5MoeForCausalLM"};
  return config;
}

// Parts of a file whose linears are BF16 or FP8 in blocks, experts fused or apart.
class List {
 public:
  List(bool fp8, bool fused) : fp8_(fp8), fused_(fused) {}

  void bf16(const std::string& name, std::vector<int64_t> shape) {
    tensors.push_back({name, "BF16", std::move(shape), ""});
  }
  void linear(const std::string& module, int64_t out, int64_t in) {
    if (!fp8_) return bf16(module + ".weight", {out, in});
    tensors.push_back({module + ".weight", "F8_E4M3", {out, in}, ""});
    bf16(module + ".weight_scale_inv", {(out + 127) / 128, (in + 127) / 128});
  }
  void attention(const std::string& layer) {
    linear(layer + "self_attn.q_proj", 8192, 2048);
    linear(layer + "self_attn.k_proj", 512, 2048);
    linear(layer + "self_attn.v_proj", 512, 2048);
    linear(layer + "self_attn.o_proj", 2048, 4096);
    bf16(layer + "self_attn.q_norm.weight", {256});
    bf16(layer + "self_attn.k_norm.weight", {256});
  }
  void delta_net(const std::string& layer) {
    linear(layer + "linear_attn.in_proj_qkv", 8192, 2048);
    linear(layer + "linear_attn.in_proj_z", 4096, 2048);
    bf16(layer + "linear_attn.in_proj_b.weight", {32, 2048});
    bf16(layer + "linear_attn.in_proj_a.weight", {32, 2048});
    bf16(layer + "linear_attn.conv1d.weight", {8192, 1, 4});
    bf16(layer + "linear_attn.A_log", {32});
    bf16(layer + "linear_attn.dt_bias", {32});
    bf16(layer + "linear_attn.norm.weight", {128});
    linear(layer + "linear_attn.out_proj", 2048, 4096);
  }
  void experts(const std::string& layer) {
    bf16(layer + "input_layernorm.weight", {2048});
    bf16(layer + "post_attention_layernorm.weight", {2048});
    bf16(layer + "mlp.gate.weight", {kExperts, 2048});
    bf16(layer + "mlp.shared_expert_gate.weight", {1, 2048});
    expert(layer + "mlp.shared_expert.");
    if (fused_) {
      bf16(layer + "mlp.experts.gate_up_proj", {kExperts, 1024, 2048});
      bf16(layer + "mlp.experts.down_proj", {kExperts, 2048, 512});
      return;
    }
    for (int e = 0; e < kExperts; ++e) expert(layer + "mlp.experts." + std::to_string(e) + ".");
  }
  void text(const std::string& root) {
    bf16("lm_head.weight", {248320, 2048});
    bf16(root + "embed_tokens.weight", {248320, 2048});
    bf16(root + "norm.weight", {2048});
    for (int n = 0; n < kLayers; ++n) {
      const std::string layer = root + "layers." + std::to_string(n) + ".";
      n % 4 == 3 ? attention(layer) : delta_net(layer);
      experts(layer);
    }
  }
  void prediction() {
    bf16("mtp.fc.weight", {2048, 4096});
    for (const char* norm : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
      bf16(std::string("mtp.") + norm + ".weight", {2048});
    attention("mtp.layers.0.");
    experts("mtp.layers.0.");
  }
  void vision() {
    const auto with_bias = [&](const std::string& module, std::vector<int64_t> shape) {
      bf16("model.visual." + module + ".bias", {shape.front()});
      bf16("model.visual." + module + ".weight", std::move(shape));
    };
    for (int n = 0; n < 27; ++n) {
      const std::string block = "blocks." + std::to_string(n) + ".";
      with_bias(block + "norm1", {1152});
      with_bias(block + "norm2", {1152});
      with_bias(block + "attn.qkv", {3456, 1152});
      with_bias(block + "attn.proj", {1152, 1152});
      with_bias(block + "mlp.linear_fc1", {4304, 1152});
      with_bias(block + "mlp.linear_fc2", {1152, 4304});
    }
    with_bias("patch_embed.proj", {1152, 3, 2, 16, 16});
    bf16("model.visual.pos_embed.weight", {2304, 1152});
    with_bias("merger.norm", {1152});
    with_bias("merger.linear_fc1", {4608, 4608});
    with_bias("merger.linear_fc2", {2048, 4608});
  }

  std::vector<WrittenTensor> tensors;

 private:
  void expert(const std::string& path) {
    linear(path + "gate_proj", 512, 2048);
    linear(path + "up_proj", 512, 2048);
    linear(path + "down_proj", 2048, 512);
  }
  bool fp8_, fused_;
};

std::vector<WrittenTensor> whole(bool fp8) {
  List list(fp8, !fp8);
  list.text("model.language_model.");
  list.prediction();
  list.vision();
  return list.tensors;
}

Json fp8_config() {
  Json config = whole_config();
  Json& recipe = config["quantization_config"];
  recipe = *parse_json(R"({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                           "weight_block_size": [128, 128],
                           "modules_to_not_convert": ["lm_head", "model.visual", "mtp.fc",
                             "model.language_model.embed_tokens"]})",
                       "config.json");
  for (int n = 0; n < kLayers; ++n) {
    const std::string layer = "model.language_model.layers." + std::to_string(n) + ".";
    for (const char* module : {"mlp.gate", "mlp.shared_expert_gate"})
      recipe["modules_to_not_convert"].push_back(layer + module);
    if (n % 4 == 3) continue;
    for (const char* module : {"in_proj_a", "in_proj_b", "conv1d"})
      recipe["modules_to_not_convert"].push_back(layer + "linear_attn." + module);
  }
  return config;
}

constexpr int64_t kTextParameters = 34'660'610'688;

// The loader's view of a list; `seen` checks it.
template <typename Seen>
void match(const std::vector<WrittenTensor>& tensors, Json config, Seen seen) {
  const auto checkpoint =
      Checkpoint::from_headers({header_of(tensors)}, files_of(std::move(config)));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto arch = find_arch(checkpoint->config().model_type());
  ASSERT_TRUE(arch) << arch.error().message;
  const auto table = (*arch)->table(checkpoint->config());
  ASSERT_TRUE(table) << table.error().message;
  const auto model = match_checkpoint(*checkpoint, *table);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE(model->warnings.empty()) << model->warnings.front();
  EXPECT_EQ(parameters(*model), kTextParameters);
  const auto decoder = (*arch)->decoder(checkpoint->config());
  ASSERT_TRUE(decoder) << decoder.error().message;
  seen(*checkpoint, *model, *decoder);
}

TEST(Qwen35MoeLayout, Bf16Release) {
  const auto tensors = whole(/*fp8=*/false);
  EXPECT_EQ(tensors.size(), 693u + 19 + 333);
  match(tensors, whole_config(),
        [](const Checkpoint& checkpoint, const StoredModel& model, const DecoderSpec& decoder) {
          EXPECT_EQ(checkpoint.total_bytes(), 71'903'645'408u);
          EXPECT_EQ(model.prefix, "model.language_model.");
          for (const StoredLinear& linear : model.linears)
            EXPECT_EQ(linear.format, &kFormatBF16) << linear.spec->path();
          ASSERT_EQ(decoder.layers.size(), 40u);
          EXPECT_EQ(decoder.rope.rotary(), 64);
          for (size_t i = 0; i < 40; ++i) {
            const LayerSpec& layer = decoder.layers[i];
            EXPECT_EQ(layer.attention.has_value(), i % 4 == 3) << i;
            EXPECT_EQ(layer.delta_net.has_value(), i % 4 != 3) << i;
            ASSERT_TRUE(layer.moe && layer.moe->shared) << i;
            EXPECT_EQ(layer.moe->top_k, 8);
            EXPECT_EQ(layer.moe->shared->intermediate, 512);
            EXPECT_TRUE(layer.moe->shared->gated_output);
          }
          EXPECT_TRUE(decoder.layers[3].attention->gated);
          EXPECT_EQ(decoder.layers[3].attention->scale, 1.0f / 16);
          EXPECT_EQ(decoder.layers[0].delta_net->channels(), 8192);
        });
}

TEST(Qwen35MoeLayout, Fp8Release) {
  const auto tensors = whole(/*fp8=*/true);
  EXPECT_EQ(tensors.size(), 64'196u);
  match(tensors, fp8_config(), [](const Checkpoint&, const StoredModel& model, const DecoderSpec&) {
    int64_t quantized = 0, text_bytes = 0;
    for (const StoredLinear& linear : model.linears) {
      const bool is = linear.format == &kFormatFp8Block;
      EXPECT_EQ(is, quantizers_take(linear.spec->stage)) << linear.spec->path();
      for (const StoredTensor& tensor : linear.tensors) {
        quantized += is && tensor.role == TensorRole::kCodes;
        text_bytes += static_cast<int64_t>(tensor.view.bytes());
      }
    }
    for (const TensorView& view : model.plain) text_bytes += static_cast<int64_t>(view.bytes());
    EXPECT_EQ(quantized, 30'720 + 250);
    EXPECT_EQ(text_bytes, 35'707'978'496);
  });
}

// As the text class of Transformers saves it, and with experts apart.
TEST(Qwen35MoeLayout, TextModelAlone) {
  for (const bool fused : {true, false}) {
    List list(/*fp8=*/false, fused);
    list.text("model.");
    match(list.tensors, text_config(),
          [](const Checkpoint& checkpoint, const StoredModel& model, const DecoderSpec&) {
            EXPECT_EQ(checkpoint.total_bytes(), 2u * kTextParameters);
            EXPECT_EQ(model.prefix, "model.");
          });
  }
}

TEST(Qwen35MoeLayout, NormsAreStoredAroundZeroButOne) {
  const auto table = (*find_arch("qwen3_5_moe"))->table(files_of(whole_config()));
  ASSERT_TRUE(table) << table.error().message;
  int around_one = 0;
  for (const PlainTensorSpec& plain : table->plain) {
    const bool norm = plain.name.find("norm") != std::string::npos;
    const bool of_mixer = plain.name.ends_with("linear_attn.norm.weight");
    around_one += of_mixer;
    EXPECT_EQ(plain.offset, norm && !of_mixer ? 1.0f : 0.0f) << plain.name;
  }
  EXPECT_EQ(around_one, 30);
}

TEST(Qwen35MoeLayout, MissingAndUnknownTensorsAreNamed) {
  const auto table = (*find_arch("qwen3_5_moe"))->table(files_of(whole_config()));
  const auto load = [&](const std::vector<WrittenTensor>& tensors) {
    const auto checkpoint =
        Checkpoint::from_headers({header_of(tensors)}, files_of(whole_config()));
    const auto model = match_checkpoint(*checkpoint, *table);
    return model ? std::string() : model.error().message;
  };
  const std::string layer = "model.language_model.layers.5.";
  for (const char* name : {"linear_attn.dt_bias", "linear_attn.in_proj_z.weight",
                           "mlp.shared_expert.up_proj.weight", "mlp.shared_expert_gate.weight"}) {
    auto tensors = whole(/*fp8=*/false);
    std::erase_if(tensors, [&](const WrittenTensor& t) { return t.name == layer + name; });
    EXPECT_NE(load(tensors).find(layer + name), std::string::npos) << load(tensors);
  }
  for (const std::string& name : {layer + "linear_attn.conv1d.bias", std::string("visual.x"),
                                  std::string("model.mtp.fc.weight")}) {
    auto tensors = whole(/*fp8=*/false);
    tensors.push_back({name, "BF16", {8}, ""});
    EXPECT_NE(load(tensors).find(name), std::string::npos) << load(tensors);
  }
}

TEST(Qwen35MoeLayout, WhatIsNotImplementedIsRefusedByName) {
  const auto refusal = [](const char* patch) {
    Json config = text_config();
    config.merge_patch(*parse_json(patch, "patch"));
    const auto table = (*find_arch("qwen3_5_moe_text"))->table(files_of(config));
    return table ? std::string() : table.error().message;
  };
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"attn_output_gate": false})", "attn_output_gate is false, expected true"},
      {R"({"norm_topk_prob": false})", "norm_topk_prob is false, expected true"},
      {R"({"mlp_only_layers": [1]})", "mlp_only_layers"},
      {R"({"hidden_act": "gelu"})", "hidden_act is gelu, expected silu"},
      {R"({"layer_types": ["full_attention"]})", "layer_types has 1 entries, expected 40"},
      {R"({"layer_types": null, "full_attention_interval": 0})", "full_attention_interval"},
      {R"({"linear_num_value_heads": 24})", "expected a multiple of linear_num_key_heads = 16"},
      {R"({"linear_conv_kernel_dim": null})", "linear_conv_kernel_dim"},
      {R"({"shared_expert_intermediate_size": null})", "shared_expert_intermediate_size"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor differs"},
      {R"({"rope_parameters": {"mrope_section": [11, 11, 11]}})", "mrope_section"},
      {R"({"rope_parameters": {"mrope_section": "11"}})", "mrope_section"},
      {R"({"rope_parameters": {"rope_type": "dynamic"}})", "rope_type is dynamic"},
      {R"({"rope_parameters": {"attention_factor": 2}})", "attention_factor"},
  };
  EXPECT_EQ(refusal("{}"), "");
  for (const auto& [patch, sentence] : kCases)
    EXPECT_NE(refusal(patch).find(sentence), std::string::npos) << patch << ": " << refusal(patch);
  Json types = text_config();
  for (int i = 0; i < kLayers; ++i) types["layer_types"].push_back("sliding_attention");
  EXPECT_ERROR((*find_arch("qwen3_5_moe_text"))->table(files_of(types)), "sliding_attention");
  Json bare = whole_config();
  bare.erase("text_config");
  EXPECT_ERROR((*find_arch("qwen3_5_moe"))->table(files_of(bare)), "text_config is missing");
}

}  // namespace
}  // namespace lk
