#include "model/arch/attention_moe.h"

#include <algorithm>
#include <cmath>

namespace lk {
namespace {

// Adds a name unless it is there.
void add_name(LinearSpec& spec, std::string path, NameForm form, RowPart part) {
  const bool known = std::any_of(spec.names.begin(), spec.names.end(),
                                 [&](const LinearName& name) { return name.path == path; });
  if (!known) spec.names.push_back({std::move(path), form, part});
}

LinearSpec expert_up(const AttentionMoeConfig& config, int layer) {
  LinearSpec spec{.stage = Stage::kExpertUp,
                  .layer = layer,
                  .experts = config.experts,
                  .out = 2 * config.intermediate,
                  .in = config.hidden,
                  .row_order = RowOrder::kStackedGateUp,
                  .names = {}};
  const auto add = [&](std::string_view name, NameForm form, RowPart part) {
    add_name(spec, layer_path(layer, name), form, part);
  };
  add(config.gate, NameForm::kExpertModule, RowPart::kGate);
  add(config.up, NameForm::kExpertModule, RowPart::kUp);
  add("mlp.experts.gate_up_proj", NameForm::kParameterOutIn, RowPart::kAll);
  add("mlp.experts.{expert}.gate_proj", NameForm::kExpertModule, RowPart::kGate);
  add("mlp.experts.{expert}.up_proj", NameForm::kExpertModule, RowPart::kUp);
  add("mlp.experts.{expert}.w1", NameForm::kExpertModule, RowPart::kGate);
  add("mlp.experts.{expert}.w3", NameForm::kExpertModule, RowPart::kUp);
  return spec;
}

LinearSpec expert_down(const AttentionMoeConfig& config, int layer) {
  LinearSpec spec{.stage = Stage::kExpertDown,
                  .layer = layer,
                  .experts = config.experts,
                  .out = config.hidden,
                  .in = config.intermediate,
                  .names = {}};
  const auto add = [&](std::string_view name, NameForm form) {
    add_name(spec, layer_path(layer, name), form, RowPart::kAll);
  };
  add(config.down, NameForm::kExpertModule);
  add("mlp.experts.down_proj", NameForm::kParameterOutIn);
  add("mlp.experts.{expert}.down_proj", NameForm::kExpertModule);
  add("mlp.experts.{expert}.w2", NameForm::kExpertModule);
  return spec;
}

int64_t norm_width(const AttentionMoeConfig& config, int heads) {
  return config.qk_norm == QkNorm::kWhole ? int64_t{heads} * config.head_dim : config.head_dim;
}

}  // namespace

Result<AttentionMoeConfig> parse_attention_moe(const JsonFields& fields,
                                               std::string_view experts_key,
                                               std::string_view intermediate_key) {
  AttentionMoeConfig config;
  LK_ASSIGN_OR_RETURN(config.layers, count(fields, "num_hidden_layers", kMaxLayers));
  LK_ASSIGN_OR_RETURN(config.hidden, fields.integer("hidden_size", 1, kMaxWidth));
  LK_ASSIGN_OR_RETURN(config.intermediate, fields.integer(intermediate_key, 1, kMaxWidth));
  // Transformers 5 may save either name.
  for (std::string_view other : {"num_experts", "num_local_experts"}) {
    if (!fields.has(experts_key) && fields.has(other)) experts_key = other;
  }
  LK_ASSIGN_OR_RETURN(config.experts, count(fields, experts_key, kMaxExperts));
  LK_ASSIGN_OR_RETURN(config.top_k, count(fields, "num_experts_per_tok", config.experts));
  LK_ASSIGN_OR_RETURN(config.heads, count(fields, "num_attention_heads", kMaxHeads));
  LK_ASSIGN_OR_RETURN(config.kv_heads, kv_head_count(fields, config.heads, /*optional=*/true));
  if (fields.has("head_dim")) {
    LK_ASSIGN_OR_RETURN(config.head_dim, count(fields, "head_dim", kMaxHeadDim));
  } else {
    if (config.hidden % config.heads != 0 || config.hidden / config.heads > kMaxHeadDim) {
      return invalid(
          "{}: there is no head_dim, and hidden_size = {} over num_attention_heads = {} "
          "is none",
          fields.what(), config.hidden, config.heads);
    }
    config.head_dim = static_cast<int>(config.hidden / config.heads);
  }
  if (config.head_dim % 2 != 0) {
    return invalid("{}: head_dim is {}, expected an even number", fields.what(), config.head_dim);
  }
  LK_ASSIGN_OR_RETURN(config.vocab, fields.integer("vocab_size", 1, kMaxVocab));
  LK_ASSIGN_OR_RETURN(config.max_positions,
                      fields.integer("max_position_embeddings", 1, kMaxPositions));
  LK_ASSIGN_OR_RETURN(const double eps,
                      number_between(fields, "rms_norm_eps", kRequired, 1e-12, 1));
  config.norm_eps = static_cast<float>(eps);
  LK_ASSIGN_OR_RETURN(config.tied_head, fields.boolean_or("tie_word_embeddings", false));
  LK_ASSIGN_OR_RETURN(config.attention_bias, fields.boolean_or("attention_bias", false));
  LK_RETURN_IF_ERROR(expect_string(fields, "hidden_act", "silu"));
  return config;
}

void add_experts(LinearTable& table, const AttentionMoeConfig& config, int layer) {
  table.linears.push_back(module_spec(Stage::kRouter, layer, layer_path(layer, config.router),
                                      config.experts, config.hidden, false));
  add_name(table.linears.back(), layer_path(layer, "mlp.gate"), NameForm::kModule, RowPart::kAll);
  table.linears.push_back(expert_up(config, layer));
  table.linears.push_back(expert_down(config, layer));
}

LinearTable attention_moe_table(const AttentionMoeConfig& config) {
  const int64_t hidden = config.hidden;
  const int64_t query = int64_t{config.heads} * config.head_dim;
  const int64_t key_value = int64_t{config.kv_heads} * config.head_dim;
  LinearTable table = decoder_table(config.architecture, config.tied_head, config.vocab, hidden);
  for (int layer = 0; layer < config.layers; ++layer) {
    add_attention(
        table, layer,
        {.hidden = hidden, .query = query, .key_value = key_value, .bias = config.attention_bias});
    add_experts(table, config, layer);
    table.plain.push_back({layer_path(layer, "input_layernorm.weight"), {hidden}});
    table.plain.push_back({layer_path(layer, "post_attention_layernorm.weight"), {hidden}});
    if (config.qk_norm == QkNorm::kNone) continue;
    table.plain.push_back(
        {layer_path(layer, "self_attn.q_norm.weight"), {norm_width(config, config.heads)}});
    table.plain.push_back(
        {layer_path(layer, "self_attn.k_norm.weight"), {norm_width(config, config.kv_heads)}});
  }
  finish_decoder_table(table, config.vocab, hidden);
  return table;
}

DecoderSpec attention_moe_decoder(const AttentionMoeConfig& config) {
  DecoderSpec spec{.hidden = static_cast<int>(config.hidden),
                   .vocab = static_cast<int>(config.vocab),
                   .max_positions = static_cast<int>(config.max_positions),
                   .norm_eps = config.norm_eps,
                   .final_norm = "norm.weight",
                   .rope = make_rope(config.rope, config.head_dim),
                   .layers = {}};
  const bool norms = config.qk_norm != QkNorm::kNone;
  for (int i = 0; i < config.layers; ++i) {
    LayerSpec& layer = spec.layers.emplace_back();
    const auto path = [&](std::string_view name) { return layer_path(i, name); };
    layer.attention = {.norm = path("input_layernorm.weight"),
                       .heads = config.heads,
                       .kv_heads = config.kv_heads,
                       .head_dim = config.head_dim,
                       .window = static_cast<int>(config.window),
                       .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
                       .sinks = "",
                       .query_norm = norms ? path("self_attn.q_norm.weight") : "",
                       .key_norm = norms ? path("self_attn.k_norm.weight") : "",
                       .norm_whole = config.qk_norm == QkNorm::kWhole,
                       .clip = config.clip};
    layer.moe = {.norm = path("post_attention_layernorm.weight"),
                 .rule = config.rule,
                 .experts = config.experts,
                 .top_k = config.top_k,
                 .intermediate = static_cast<int>(config.intermediate),
                 .activation = Activation::kSwiGlu};
  }
  return spec;
}

}  // namespace lk
