#include "model/arch/gpt_oss.h"

namespace lk {
namespace {

Result<std::vector<bool>> parse_sliding(const JsonFields& fields, int layers) {
  std::vector<bool> sliding(static_cast<size_t>(layers));
  if (!fields.has("layer_types")) {
    for (size_t i = 0; i < sliding.size(); i += 2) sliding[i] = true;
    return sliding;
  }
  LK_ASSIGN_OR_RETURN(std::vector<std::string> types, fields.strings("layer_types"));
  if (types.size() != sliding.size()) {
    return invalid("{}: field layer_types lists {} layers, expected num_hidden_layers = {}",
                   fields.what(), types.size(), layers);
  }
  for (size_t i = 0; i < types.size(); ++i) {
    sliding[i] = types[i] == "sliding_attention";
    if (!sliding[i] && types[i] != "full_attention") {
      return unsupported("{}: layer_types[{}] is {}, expected sliding_attention or full_attention",
                         fields.what(), i, types[i].substr(0, 60));
    }
  }
  return sliding;
}

LinearSpec expert_up(const GptOssConfig& config, int layer) {
  LinearSpec spec{.stage = Stage::kExpertUp,
                  .layer = layer,
                  .experts = config.experts,
                  .out = 2 * config.intermediate,
                  .in = config.hidden,
                  .row_order = RowOrder::kInterleavedGateUp,
                  .bias = true,
                  .names = {}};
  auto path = [&](std::string_view name) { return layer_path(layer, name); };
  spec.names = {
      {path("mlp.experts.gate_up_proj"), NameForm::kParameterInOut, RowPart::kAll},
      {path("mlp.experts.gate_up_projs.{expert}"), NameForm::kExpertModule, RowPart::kAll},
      {path("mlp.experts.{expert}.gate_proj"), NameForm::kExpertModule, RowPart::kGate},
      {path("mlp.experts.{expert}.up_proj"), NameForm::kExpertModule, RowPart::kUp},
      {path("mlp.experts.{expert}.w1"), NameForm::kExpertModule, RowPart::kGate},
      {path("mlp.experts.{expert}.w3"), NameForm::kExpertModule, RowPart::kUp},
  };
  return spec;
}

LinearSpec expert_down(const GptOssConfig& config, int layer) {
  LinearSpec spec{.stage = Stage::kExpertDown,
                  .layer = layer,
                  .experts = config.experts,
                  .out = config.hidden,
                  .in = config.intermediate,
                  .bias = true,
                  .names = {}};
  auto path = [&](std::string_view name) { return layer_path(layer, name); };
  spec.names = {
      {path("mlp.experts.down_proj"), NameForm::kParameterInOut, RowPart::kAll},
      {path("mlp.experts.down_projs.{expert}"), NameForm::kExpertModule, RowPart::kAll},
      {path("mlp.experts.{expert}.down_proj"), NameForm::kExpertModule, RowPart::kAll},
      {path("mlp.experts.{expert}.w2"), NameForm::kExpertModule, RowPart::kAll},
  };
  return spec;
}

}  // namespace

Result<GptOssConfig> parse_gpt_oss_config(const HfConfig& files) {
  const JsonFields fields = files.fields();
  GptOssConfig config;
  LK_ASSIGN_OR_RETURN(config.layers, count(fields, "num_hidden_layers", kMaxLayers));
  LK_ASSIGN_OR_RETURN(config.hidden, fields.integer("hidden_size", 1, kMaxWidth));
  LK_ASSIGN_OR_RETURN(config.intermediate, fields.integer("intermediate_size", 1, kMaxWidth));
  LK_ASSIGN_OR_RETURN(config.experts, count(fields, "num_local_experts", kMaxExperts));
  const bool old_name = !fields.has("num_experts_per_tok") && fields.has("experts_per_token");
  LK_ASSIGN_OR_RETURN(
      config.experts_per_token,
      count(fields, old_name ? "experts_per_token" : "num_experts_per_tok", config.experts));
  LK_ASSIGN_OR_RETURN(config.heads, count(fields, "num_attention_heads", kMaxHeads));
  LK_ASSIGN_OR_RETURN(config.kv_heads, kv_head_count(fields, config.heads, /*optional=*/false));
  LK_ASSIGN_OR_RETURN(config.head_dim, count(fields, "head_dim", kMaxHeadDim));
  if (config.head_dim % 2 != 0) {
    return invalid("{}: field head_dim is {}, expected an even number", fields.what(),
                   config.head_dim);
  }
  LK_ASSIGN_OR_RETURN(config.vocab, fields.integer("vocab_size", 1, kMaxVocab));
  LK_ASSIGN_OR_RETURN(config.max_position_embeddings,
                      fields.integer("max_position_embeddings", 1, kMaxPositions));
  LK_ASSIGN_OR_RETURN(config.sliding, parse_sliding(fields, config.layers));
  LK_ASSIGN_OR_RETURN(config.sliding_window, fields.integer("sliding_window", 1, kMaxPositions));
  LK_ASSIGN_OR_RETURN(double eps, number_between(fields, "rms_norm_eps", kRequired, 1e-12, 1));
  LK_ASSIGN_OR_RETURN(double limit, number_between(fields, "swiglu_limit", 7.0, 1e-3, 1e6));
  LK_ASSIGN_OR_RETURN(double alpha, number_between(fields, "swiglu_alpha", 1.702, 1e-3, 1e3));
  config.rms_norm_eps = static_cast<float>(eps);
  config.swiglu_limit = static_cast<float>(limit);
  config.swiglu_alpha = static_cast<float>(alpha);
  LK_ASSIGN_OR_RETURN(config.rope, parse_rope(fields));
  LK_ASSIGN_OR_RETURN(config.tie_word_embeddings, fields.boolean_or("tie_word_embeddings", false));
  LK_ASSIGN_OR_RETURN(config.attention_bias, fields.boolean_or("attention_bias", true));
  LK_RETURN_IF_ERROR(expect_string(fields, "hidden_act", "silu"));
  return config;
}

LinearTable gpt_oss_linear_table(const GptOssConfig& config) {
  const int64_t hidden = config.hidden;
  const int64_t query = int64_t{config.heads} * config.head_dim;
  const int64_t key_value = int64_t{config.kv_heads} * config.head_dim;
  LinearTable table = decoder_table("gpt_oss", config.tie_word_embeddings, config.vocab, hidden);
  for (int layer = 0; layer < config.layers; ++layer) {
    add_attention(
        table, layer,
        {.hidden = hidden, .query = query, .key_value = key_value, .bias = config.attention_bias});
    table.linears.push_back(module_spec(Stage::kRouter, layer, layer_path(layer, "mlp.router"),
                                        config.experts, hidden, true));
    table.linears.push_back(expert_up(config, layer));
    table.linears.push_back(expert_down(config, layer));
    table.plain.push_back({layer_path(layer, "input_layernorm.weight"), {hidden}});
    table.plain.push_back({layer_path(layer, "self_attn.sinks"), {config.heads}});
    table.plain.push_back({layer_path(layer, "post_attention_layernorm.weight"), {hidden}});
  }
  finish_decoder_table(table, config.vocab, hidden);
  return table;
}

}  // namespace lk
