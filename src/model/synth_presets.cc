#include "model/synth_presets.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/archs.h"

namespace lk {
namespace {

struct Preset {
  std::string_view name;
  const char* config;
  const char* generation_config;
};

// Published values (config.json of the named repositories).
#define LK_GPT_OSS(layers, experts)                                                                                \
  R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": )" layers              \
  R"(, "num_local_experts": )" experts                                                                             \
  R"(, "num_experts_per_tok": 4, "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,)"      \
  R"( "num_key_value_heads": 8, "head_dim": 64, "attention_bias": true, "sliding_window": 128,)"                   \
  R"( "max_position_embeddings": 131072, "initial_context_length": 4096, "rope_theta": 150000,)"                   \
  R"( "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,)"                 \
  R"( "original_max_position_embeddings": 4096, "truncate": false}, "rms_norm_eps": 1e-05, "hidden_act": "silu",)" \
  R"( "swiglu_limit": 7.0, "vocab_size": 201088, "tie_word_embeddings": false, "eos_token_id": 200002,)"           \
  R"( "pad_token_id": 199999, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert":)"         \
  R"( ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}})"

constexpr const char* kGptOssGeneration = R"({"bos_token_id": 199998, "do_sample": true,
 "eos_token_id": [200002, 199999, 200012], "pad_token_id": 199999})";

// Without the parts that see and that predict further tokens.
constexpr const char* kQwen36 = R"({"architectures": ["Qwen3_5MoeForConditionalGeneration"],
 "model_type": "qwen3_5_moe", "tie_word_embeddings": false, "text_config": {
  "attention_bias": false, "attn_output_gate": true, "bos_token_id": 248044,
  "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
  "hidden_size": 2048, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
  "max_position_embeddings": 262144, "model_type": "qwen3_5_moe_text",
  "moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 256,
  "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2,
  "rms_norm_eps": 1e-06, "rope_parameters": {"mrope_interleaved": true,
   "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
   "rope_type": "default"}, "shared_expert_intermediate_size": 512, "vocab_size": 248320},
 "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
  "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head",
   "model.language_model.embed_tokens", "model.language_model.layers.*.mlp.gate",
   "model.language_model.layers.*.mlp.shared_expert_gate",
   "model.language_model.layers.*.linear_attn.in_proj_a",
   "model.language_model.layers.*.linear_attn.in_proj_b"]}})";
constexpr const char* kQwen36Generation = R"({"bos_token_id": 248044, "do_sample": true,
 "eos_token_id": [248046, 248044], "pad_token_id": 248044, "top_k": 20, "top_p": 0.95})";

constexpr const char* kNemotronNano = R"({"architectures": ["NemotronHForCausalLM"],
 "model_type": "nemotron_h", "num_hidden_layers": 52, "hybrid_override_pattern":
  "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
 "attention_bias": false, "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4,
 "eos_token_id": 2, "head_dim": 128, "hidden_size": 2688, "layer_norm_epsilon": 1e-05,
 "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
 "mamba_proj_bias": false, "max_position_embeddings": 262144, "mlp_bias": false,
 "mlp_hidden_act": "relu2", "moe_intermediate_size": 1856,
 "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
 "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true,
 "num_attention_heads": 32, "num_experts_per_tok": 6, "num_key_value_heads": 2,
 "pad_token_id": 0, "routed_scaling_factor": 2.5, "ssm_state_size": 128,
 "tie_word_embeddings": false, "topk_group": 1, "use_bias": false, "use_conv_bias": true,
 "vocab_size": 131072})";
constexpr const char* kNemotronGeneration = R"({"bos_token_id": 1, "do_sample": true,
 "eos_token_id": [2, 11], "pad_token_id": 0})";

#define LK_QWEN3(quantization)                                                                                   \
  R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": false,)"            \
  R"( "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,)"               \
  R"( "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,)"  \
  R"( "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,)"  \
  R"( "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,)"         \
  R"( "rms_norm_eps": 1e-06, "rope_theta": 1000000, "tie_word_embeddings": false, "use_sliding_window": false,)" \
  R"( "vocab_size": 151936)" quantization "}"
constexpr const char* kQwen3Generation = R"({"bos_token_id": 151643, "do_sample": true,
 "eos_token_id": [151645, 151643], "pad_token_id": 151643, "temperature": 0.6, "top_k": 20, "top_p": 0.95})";

constexpr const char* kOlmoe = R"({"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe",
 "attention_bias": false, "clip_qkv": null, "eos_token_id": 50279, "hidden_act": "silu",
 "hidden_size": 2048, "intermediate_size": 1024, "max_position_embeddings": 4096,
 "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
 "num_hidden_layers": 16, "num_key_value_heads": 16, "pad_token_id": 1, "rms_norm_eps": 1e-05,
 "rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": 50304})";
constexpr const char* kOlmoeGeneration = R"({"eos_token_id": 50279, "pad_token_id": 1})";

constexpr const char* kMixtral =
    R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
 "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
 "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
 "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
 "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
 "tie_word_embeddings": false, "vocab_size": 32000})";
constexpr const char* kMixtralGeneration = R"({"bos_token_id": 1, "eos_token_id": 2})";

constexpr Preset kPresets[] = {
    {"gpt-oss-20b", LK_GPT_OSS("24", "32"), kGptOssGeneration},
    {"gpt-oss-120b", LK_GPT_OSS("36", "128"), kGptOssGeneration},
    {"qwen3.6-35b-a3b-fp8", kQwen36, kQwen36Generation},
    {"nemotron-3-nano-30b-a3b-nvfp4", kNemotronNano, kNemotronGeneration},
    {"qwen3-30b-a3b", LK_QWEN3(""), kQwen3Generation},
    {"qwen3-30b-a3b-fp8",
     LK_QWEN3(
         R"(, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",)"
         R"( "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "model.layers.*.mlp.gate"]})"),
     kQwen3Generation},
    {"olmoe-1b-7b", kOlmoe, kOlmoeGeneration},
    {"mixtral-8x7b", kMixtral, kMixtralGeneration},
};
#undef LK_GPT_OSS
#undef LK_QWEN3

// The recipe of the published NVFP4 files, which stands beside config.json: attention stays plain,
// and so does the Mamba layer before it.
Json nemotron_recipe(const std::string& all_layers) {
  Json excluded = Json::array({"lm_head"});
  for (size_t i = 0; i < all_layers.size(); ++i) {
    const auto exclude = [&](std::initializer_list<const char*> names) {
      for (const char* name : names)
        excluded.push_back(fmt::format("backbone.layers.{}.mixer.{}", i, name));
    };
    if (all_layers[i] == '*') exclude({"q_proj", "k_proj", "v_proj", "o_proj"});
    if (all_layers[i] != 'M') continue;
    exclude({"conv1d"});
    if (all_layers.substr(i + 1, 1) == "*") exclude({"in_proj", "out_proj"});
  }
  return {{"producer", {{"name", "modelopt"}, {"version", "0.29.0"}}},
          {"quantization",
           {{"quant_algo", "NVFP4"},
            {"kv_cache_quant_algo", nullptr},
            {"group_size", 16},
            {"exclude_modules", excluded}}}};
}

}  // namespace

std::string synth_presets() {
  std::string names;
  for (const Preset& preset : kPresets)
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  return names;
}

namespace {

std::string lower(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

Result<HfConfig> preset_files(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (preset.name != lower(name)) continue;
    LK_ASSIGN_OR_RETURN(Json config, parse_json(preset.config, "preset config"));
    LK_ASSIGN_OR_RETURN(Json generation,
                        parse_json(preset.generation_config, "preset generation config"));
    HfConfig files;
    if (config.contains("hybrid_override_pattern")) {
      const std::string pattern = config["hybrid_override_pattern"];
      files.hf_quant_config = std::make_shared<const Json>(nemotron_recipe(pattern));
    }
    files.config = std::make_shared<const Json>(std::move(config));
    files.generation_config = std::make_shared<const Json>(std::move(generation));
    return files;
  }
  return invalid("there is no preset '{}', and no folder with a config.json; presets are {}", name,
                 synth_presets());
}

// Keeps the first `layers` in every field that goes layer by layer.
void cut_layers(Json& text, size_t layers) {
  if (text.contains("num_hidden_layers")) text["num_hidden_layers"] = layers;
  for (const char* key : {"layer_types", "layers_block_type"}) {
    if (!text.contains(key) || !text[key].is_array() || text[key].size() < layers) continue;
    text[key].erase(text[key].begin() + static_cast<int64_t>(layers), text[key].end());
  }
  if (text.contains("hybrid_override_pattern") && text["hybrid_override_pattern"].is_string()) {
    const std::string pattern = text["hybrid_override_pattern"];
    text["hybrid_override_pattern"] = pattern.substr(0, layers);
  }
}

// Drops names of modules in layers that are not kept, wherever a recipe lists them.
void cut_names(Json& json, int layers) {
  const auto gone = [layers](const Json& name) {
    constexpr std::string_view kLayers = "layers.";
    if (!name.is_string()) return false;
    const std::string& text = name.get_ref<const std::string&>();
    const size_t at = text.find(kLayers);
    return at != text.npos && std::atoi(text.c_str() + at + kLayers.size()) >= layers;
  };
  if (json.is_array()) json.erase(std::remove_if(json.begin(), json.end(), gone), json.end());
  if (json.is_structured()) {
    for (Json& member : json) cut_names(member, layers);
  }
}

int layer_count(const LinearTable& table) {
  int layers = 0;
  for (const LinearSpec& spec : table.linears) layers = std::max(layers, spec.layer + 1);
  return layers;
}

// The first layer that has experts.
int first_experts(const LinearTable& table) {
  int first = layer_count(table);
  for (const LinearSpec& spec : table.linears) {
    if (spec.experts > 0) first = std::min(first, spec.layer);
  }
  return first;
}

}  // namespace

Result<SynthModel> synth_model(const std::string& name, int layers) {
  SynthModel model;
  std::error_code unreadable;
  if (std::filesystem::is_regular_file(name + "/config.json", unreadable)) {
    LK_ASSIGN_OR_RETURN(model.files, HfConfig::read(name));
  } else {
    LK_ASSIGN_OR_RETURN(model.files, preset_files(name));
  }
  LK_ASSIGN_OR_RETURN(const ArchRow* row, find_arch(model.files.model_type()));
  LK_ASSIGN_OR_RETURN(model.table, row->table(model.files));
  if (layers == 0) return model;
  const int all = layer_count(model.table);
  if (layers < 0 || layers > all) return invalid("{} has {} layers, not {}", name, all, layers);
  if (const int first = first_experts(model.table); layers <= first) {
    return invalid("the first {} layers of {} have no experts; keep {} or more", layers, name,
                   first + 1);
  }
  Json config = *model.files.config;
  cut_layers(config.contains("text_config") ? config["text_config"] : config, layers);
  cut_names(config, layers);
  if (model.files.hf_quant_config) {
    Json recipe = *model.files.hf_quant_config;
    cut_names(recipe, layers);
    model.files.hf_quant_config = std::make_shared<const Json>(std::move(recipe));
  }
  model.files.config = std::make_shared<const Json>(std::move(config));
  LK_ASSIGN_OR_RETURN(model.table, row->table(model.files));
  return model;
}

}  // namespace lk
