#include <cmath>
#include <nlohmann/json.hpp>

#include "model/arch/attention_moe.h"

namespace lk {
namespace {

struct Config {
  AttentionMoeConfig common;
  std::vector<bool> attention;  // [layers]; the others are Gated DeltaNet
  int rotary = 0;               // dims of each head that positions turn
  DeltaNetSpec delta_net;       // sizes
  int64_t shared_intermediate = 0;
};

Result<std::vector<bool>> parse_layers(const JsonFields& fields, int layers) {
  std::vector<bool> attention;
  if (!fields.has("layer_types")) {
    LK_ASSIGN_OR_RETURN(const int64_t interval,
                        fields.integer_or("full_attention_interval", 4, 1, kMaxLayers));
    for (int i = 0; i < layers; ++i) attention.push_back((i + 1) % interval == 0);
    return attention;
  }
  LK_ASSIGN_OR_RETURN(const auto types, fields.strings("layer_types"));
  if (types.size() != static_cast<size_t>(layers)) {
    return invalid("{}: layer_types has {} entries, expected {}", fields.what(), types.size(),
                   layers);
  }
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "linear_attention") {
      return unsupported("{}: layer_types has '{}', expected linear_attention or full_attention",
                         fields.what(), type.substr(0, 60));
    }
    attention.push_back(type == "full_attention");
  }
  return attention;
}

// For text the three position ids of a token are the same, so that it does not matter which of
// them turns which dims.
Status check_mrope(const JsonFields& rope, int rotary) {
  LK_RETURN_IF_ERROR(rope.boolean_or("mrope_interleaved", true));
  if (!rope.has("mrope_section")) return {};
  const Json& section = rope.json()["mrope_section"];
  int64_t sum = 0;
  bool good = section.is_array();
  for (size_t i = 0; good && i < section.size(); ++i) {
    good = section[i].is_number_unsigned() && section[i].get<uint64_t>() <= kMaxHeadDim;
    if (good) sum += section[i].get<int64_t>();
  }
  if (good && sum == rotary / 2) return {};
  return invalid("{}: mrope_section is no list of numbers whose sum is {}", rope.what(),
                 rotary / 2);
}

Status parse_rotary(const JsonFields& fields, Config& config) {
  constexpr const char* kFactor = "partial_rotary_factor";
  LK_ASSIGN_OR_RETURN(
      config.common.rope,
      parse_rope(fields, kRequired, {kFactor, "mrope_section", "mrope_interleaved"}));
  const bool nested = fields.has("rope_parameters") || fields.has("rope_scaling");
  LK_ASSIGN_OR_RETURN(
      const JsonFields rope,
      nested ? fields.object(fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling")
             : Result<JsonFields>(fields));
  LK_ASSIGN_OR_RETURN(const double outer, number_between(fields, kFactor, 0.25, 1e-3, 1));
  LK_ASSIGN_OR_RETURN(const double factor, number_between(rope, kFactor, outer, 1e-3, 1));
  if (fields.has(kFactor) && factor != outer)
    return invalid("{}: {} differs from that of rope_parameters", fields.what(), kFactor);
  config.rotary = static_cast<int>(config.common.head_dim * factor);
  if (config.rotary < 2 || config.rotary % 2 != 0) {
    return invalid("{}: {} is {}, {} of {} dims, expected an even number", fields.what(), kFactor,
                   factor, config.rotary, config.common.head_dim);
  }
  return check_mrope(rope, config.rotary);
}

Status parse_delta_net(const JsonFields& fields, DeltaNetSpec& spec) {
  LK_ASSIGN_OR_RETURN(spec.key_heads, count(fields, "linear_num_key_heads", kMaxHeads));
  LK_ASSIGN_OR_RETURN(spec.value_heads, count(fields, "linear_num_value_heads", kMaxHeads));
  LK_ASSIGN_OR_RETURN(spec.key_dim, count(fields, "linear_key_head_dim", kMaxHeadDim));
  LK_ASSIGN_OR_RETURN(spec.value_dim, count(fields, "linear_value_head_dim", kMaxHeadDim));
  LK_ASSIGN_OR_RETURN(spec.kernel, count(fields, "linear_conv_kernel_dim", kMaxConvolution));
  if (spec.value_heads % spec.key_heads != 0) {
    return invalid(
        "{}: linear_num_value_heads is {}, expected a multiple of linear_num_key_heads = {}",
        fields.what(), spec.value_heads, spec.key_heads);
  }
  return {};
}

// What the class of this name always does.
Status expect_class(const JsonFields& fields) {
  for (const char* key : {"attn_output_gate", "norm_topk_prob"}) {
    LK_ASSIGN_OR_RETURN(const bool value, fields.boolean_or(key, true));
    if (!value) return unsupported("{}: {} is false, expected true", fields.what(), key);
  }
  if (fields.has("mlp_only_layers") && !fields.json()["mlp_only_layers"].empty())
    return unsupported("{}: mlp_only_layers lists layers, expected none", fields.what());
  return {};
}

Result<Config> parse(const HfConfig& files) {
  const JsonFields root = files.fields();
  const bool text_only = files.model_type() == "qwen3_5_moe_text";
  LK_ASSIGN_OR_RETURN(const JsonFields fields,
                      text_only ? Result<JsonFields>(root) : root.object("text_config"));
  Config config;
  LK_ASSIGN_OR_RETURN(config.common,
                      parse_attention_moe(fields, "num_experts", "moe_intermediate_size"));
  AttentionMoeConfig& common = config.common;
  common.architecture = "qwen3_5_moe";
  common.qk_norm = QkNorm::kEachHead;
  LK_ASSIGN_OR_RETURN(common.tied_head, root.boolean_or("tie_word_embeddings", common.tied_head));
  LK_RETURN_IF_ERROR(expect_class(fields));
  LK_ASSIGN_OR_RETURN(config.attention, parse_layers(fields, common.layers));
  LK_RETURN_IF_ERROR(parse_rotary(fields, config));
  LK_RETURN_IF_ERROR(parse_delta_net(fields, config.delta_net));
  LK_ASSIGN_OR_RETURN(config.shared_intermediate,
                      fields.integer("shared_expert_intermediate_size", 1, kMaxWidth));
  return config;
}

void add_delta_net(LinearTable& table, int layer, int64_t hidden, const DeltaNetSpec& spec) {
  const int64_t channels = spec.channels(), heads = spec.value_heads;
  const int64_t values = heads * spec.value_dim;
  const auto path = [&](std::string_view name) {
    return layer_path(layer, fmt::format("linear_attn.{}", name));
  };
  const auto add = [&](Stage stage, std::string_view name, int64_t out, int64_t in) {
    table.linears.push_back(module_spec(stage, layer, path(name), out, in, false));
  };
  add(Stage::kRecurrentIn, "in_proj_qkv", channels, hidden);
  add(Stage::kRecurrentGate, "in_proj_z", values, hidden);
  add(Stage::kRecurrentBeta, "in_proj_b", heads, hidden);
  add(Stage::kRecurrentDecay, "in_proj_a", heads, hidden);
  add(Stage::kRecurrentOut, "out_proj", hidden, values);
  table.plain.push_back({path("conv1d.weight"), {channels, 1, spec.kernel}});
  table.plain.push_back({path("A_log"), {heads}});
  table.plain.push_back({path("dt_bias"), {heads}});
  // The one norm that is not stored around zero.
  table.plain.push_back({path("norm.weight"), {spec.value_dim}});
}

void add_shared_expert(LinearTable& table, int layer, int64_t hidden, int64_t intermediate) {
  const auto path = [&](std::string_view name) { return layer_path(layer, name); };
  LinearSpec up = module_spec(Stage::kSharedUp, layer, path("mlp.shared_expert.gate_proj"),
                              2 * intermediate, hidden, false);
  up.row_order = RowOrder::kStackedGateUp;
  up.names.front().part = RowPart::kGate;
  up.names.push_back({path("mlp.shared_expert.up_proj"), NameForm::kModule, RowPart::kUp});
  table.linears.push_back(std::move(up));
  table.linears.push_back(module_spec(
      Stage::kSharedDown, layer, path("mlp.shared_expert.down_proj"), hidden, intermediate, false));
  table.linears.push_back(
      module_spec(Stage::kSharedGate, layer, path("mlp.shared_expert_gate"), 1, hidden, false));
}

Result<LinearTable> table(const HfConfig& files) {
  LK_ASSIGN_OR_RETURN(const Config config, parse(files));
  const AttentionMoeConfig& common = config.common;
  const int64_t hidden = common.hidden, head_dim = common.head_dim;
  LinearTable table = decoder_table(common.architecture, common.tied_head, common.vocab, hidden);
  table.prefixes = {"model.language_model.", "model."};
  table.ignored = {"model.visual.", "mtp."};
  const auto zero_centred = [&](const std::string& name, int64_t width) {
    table.plain.push_back({name, {width}, 1.0f});
  };
  for (int layer = 0; layer < common.layers; ++layer) {
    zero_centred(layer_path(layer, "input_layernorm.weight"), hidden);
    if (config.attention[layer]) {
      add_attention(table, layer,
                    {.hidden = hidden,
                     .query = common.heads * head_dim,
                     .key_value = common.kv_heads * head_dim,
                     .bias = common.attention_bias,
                     .gated = true});
      zero_centred(layer_path(layer, "self_attn.q_norm.weight"), head_dim);
      zero_centred(layer_path(layer, "self_attn.k_norm.weight"), head_dim);
    } else {
      add_delta_net(table, layer, hidden, config.delta_net);
    }
    zero_centred(layer_path(layer, "post_attention_layernorm.weight"), hidden);
    add_experts(table, common, layer);
    add_shared_expert(table, layer, hidden, config.shared_intermediate);
  }
  finish_decoder_table(table, common.vocab, hidden);
  table.plain.back().offset = 1.0f;
  return table;
}

Result<DecoderSpec> decoder(const HfConfig& files) {
  LK_ASSIGN_OR_RETURN(const Config config, parse(files));
  DecoderSpec spec = attention_moe_decoder(config.common);
  spec.rope = make_rope(config.common.rope, config.rotary);
  for (int i = 0; i < config.common.layers; ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.moe->shared = {.intermediate = static_cast<int>(config.shared_intermediate),
                         .gated_output = true};
    if (config.attention[i]) {
      layer.attention->gated = true;
      continue;
    }
    const auto path = [&](std::string_view name) {
      return layer_path(i, fmt::format("linear_attn.{}", name));
    };
    DeltaNetSpec& net = layer.delta_net.emplace(config.delta_net);
    net.norm = layer.attention->norm;
    net.conv = path("conv1d.weight");
    net.a_log = path("A_log");
    net.dt_bias = path("dt_bias");
    net.out_norm = path("norm.weight");
    layer.attention.reset();
  }
  return spec;
}

}  // namespace

extern constinit const ArchRow kArchQwen35Moe{"qwen3_5_moe", table, decoder};
extern constinit const ArchRow kArchQwen35MoeText{"qwen3_5_moe_text", table, decoder};

}  // namespace lk
