#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/arch/config_fields.h"
#include "model/archs.h"

namespace lk {
namespace {

enum class Mixer : uint8_t { kMamba, kAttention, kExperts, kDense };

// A layer as hybrid_override_pattern and layers_block_type call it.
struct MixerRow {
  char letter;
  std::string_view word, old_word;
  Mixer mixer;
};
constexpr MixerRow kMixers[] = {{'M', "linear_attention", "mamba", Mixer::kMamba},
                                {'*', "full_attention", "attention", Mixer::kAttention},
                                {'E', "moe", "moe", Mixer::kExperts},
                                {'-', "mlp", "mlp", Mixer::kDense}};

// Sizes only: names are filled in for each layer.
struct Config {
  std::vector<Mixer> mixers;  // [layers]
  int64_t hidden = 0, vocab = 0, max_positions = 0;
  float norm_eps = 0;
  bool tied_head = false;
  AttentionSpec attention;
  bool attention_bias = false;
  MambaSpec mamba;
  MoeSpec moe;

  int64_t expert_width() const { return moe.latent > 0 ? moe.latent : hidden; }
};

Result<std::vector<Mixer>> parse_pattern(const JsonFields& fields) {
  LK_ASSIGN_OR_RETURN(const std::string pattern, fields.string("hybrid_override_pattern"));
  std::vector<Mixer> mixers;
  for (const char letter : pattern) {
    const auto row = std::find_if(std::begin(kMixers), std::end(kMixers),
                                  [&](const MixerRow& r) { return r.letter == letter; });
    if (row == std::end(kMixers)) {
      return unsupported("{}: hybrid_override_pattern is '{}', expected letters M, E, * and -",
                         fields.what(), pattern.substr(0, 60));
    }
    mixers.push_back(row->mixer);
  }
  return mixers;
}

Result<std::vector<Mixer>> parse_words(const JsonFields& fields) {
  LK_ASSIGN_OR_RETURN(const auto words, fields.strings("layers_block_type"));
  std::vector<Mixer> mixers;
  for (const std::string& word : words) {
    const auto row = std::find_if(std::begin(kMixers), std::end(kMixers), [&](const MixerRow& r) {
      return r.word == word || r.old_word == word;
    });
    if (row == std::end(kMixers)) {
      return unsupported(
          "{}: layers_block_type has '{}', expected linear_attention, full_attention, moe or mlp",
          fields.what(), word.substr(0, 60));
    }
    mixers.push_back(row->mixer);
  }
  return mixers;
}

Result<std::vector<Mixer>> parse_mixers(const JsonFields& fields) {
  const bool has_words = fields.has("layers_block_type");
  LK_ASSIGN_OR_RETURN(std::vector<Mixer> mixers,
                      has_words ? parse_words(fields) : parse_pattern(fields));
  if (has_words && fields.has("hybrid_override_pattern")) {
    LK_ASSIGN_OR_RETURN(const auto pattern, parse_pattern(fields));
    if (pattern != mixers) {
      return invalid("{}: hybrid_override_pattern and layers_block_type describe other layers",
                     fields.what());
    }
  }
  if (mixers.size() > kMaxLayers) {
    return invalid("{}: {} layers, expected at most {}", fields.what(), mixers.size(), kMaxLayers);
  }
  const auto layers = static_cast<int64_t>(mixers.size());
  LK_ASSIGN_OR_RETURN(const int64_t said,
                      fields.integer_or("num_hidden_layers", layers, 1, kMaxLayers));
  if (said != layers) {
    return invalid("{}: num_hidden_layers is {}, but {} layers are described", fields.what(), said,
                   layers);
  }
  const auto count_of = [&](Mixer mixer) {
    return std::count(mixers.begin(), mixers.end(), mixer);
  };
  if (count_of(Mixer::kDense) > 0) {
    return unsupported("{}: {} layers are dense MLPs, which are not supported", fields.what(),
                       count_of(Mixer::kDense));
  }
  if (count_of(Mixer::kExperts) == 0)
    return unsupported("{}: no layer has experts, expected some", fields.what());
  return mixers;
}

Status parse_attention(const JsonFields& fields, Config& config) {
  AttentionSpec& spec = config.attention;
  LK_ASSIGN_OR_RETURN(spec.heads, count(fields, "num_attention_heads", kMaxHeads));
  LK_ASSIGN_OR_RETURN(spec.kv_heads, kv_head_count(fields, spec.heads, /*optional=*/true));
  LK_ASSIGN_OR_RETURN(spec.head_dim, count(fields, "head_dim", kMaxHeadDim));
  spec.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  LK_ASSIGN_OR_RETURN(config.attention_bias, fields.boolean_or("attention_bias", false));
  if (fields.has("sliding_window"))
    return unsupported("{}: sliding_window is set, expected null", fields.what());
  return {};
}

// Models whose config turns the fused kernels off were made with Transformers' plain loops, which
// keep the time step at time_step_min or above; to the kernels, and so to the published models,
// that is a bound of the random start alone.
Status parse_time_step_min(const JsonFields& fields, MambaSpec& spec) {
  LK_ASSIGN_OR_RETURN(const bool kernels, fields.boolean_or("use_mamba_kernels", true));
  LK_ASSIGN_OR_RETURN(const double least, number_between(fields, "time_step_min", 1e-3, 0, 1e3));
  if (!kernels) spec.dt_min = std::max(spec.dt_min, static_cast<float>(least));
  return {};
}

Status parse_time_step_limit(const JsonFields& fields, MambaSpec& spec) {
  if (!fields.has("time_step_limit")) return {};
  const Json& limit = fields.json()["time_step_limit"];
  const bool pair =
      limit.is_array() && limit.size() == 2 && limit[0].is_number() && limit[1].is_number();
  const double least = pair ? limit[0].get<double>() : -1, most = pair ? limit[1].get<double>() : 0;
  if (!(least >= 0 && least < most)) {
    return invalid("{}: time_step_limit is no pair of a least and a greater number, both from 0",
                   fields.what());
  }
  spec.dt_min = static_cast<float>(least);
  spec.dt_max = static_cast<float>(most);
  return {};
}

Status parse_mamba(const JsonFields& fields, MambaSpec& spec) {
  LK_ASSIGN_OR_RETURN(spec.heads, count(fields, "mamba_num_heads", kMaxHeads));
  LK_ASSIGN_OR_RETURN(spec.head_dim, count(fields, "mamba_head_dim", kMaxHeadDim));
  LK_ASSIGN_OR_RETURN(spec.groups, count(fields, "n_groups", spec.heads));
  LK_ASSIGN_OR_RETURN(spec.state_dim, count(fields, "ssm_state_size", kMaxHeadDim));
  LK_ASSIGN_OR_RETURN(spec.kernel, count(fields, "conv_kernel", kMaxConvolution));
  if (spec.heads % spec.groups != 0) {
    return invalid("{}: mamba_num_heads is {}, expected a multiple of n_groups = {}", fields.what(),
                   spec.heads, spec.groups);
  }
  LK_ASSIGN_OR_RETURN(const bool conv_bias, fields.boolean_or("use_conv_bias", true));
  spec.conv_bias = conv_bias ? "conv1d.bias" : "";
  LK_RETURN_IF_ERROR(expect_string(fields, "mamba_hidden_act", "silu"));
  LK_RETURN_IF_ERROR(parse_time_step_limit(fields, spec));
  return parse_time_step_min(fields, spec);
}

Status parse_groups(const JsonFields& fields, MoeSpec& spec) {
  LK_ASSIGN_OR_RETURN(const int64_t groups, fields.integer_or("n_group", 1, 1, spec.experts));
  LK_ASSIGN_OR_RETURN(const int64_t top, fields.integer_or("topk_group", 1, 1, groups));
  // A group's score is the sum of its two best experts'.
  if (spec.experts % groups != 0 || (groups > 1 && spec.experts / groups < 2)) {
    return invalid("{}: n_group is {}, expected a divisor of n_routed_experts = {} that leaves two",
                   fields.what(), groups, spec.experts);
  }
  if (spec.top_k > spec.experts / groups * top) {
    return invalid("{}: num_experts_per_tok is {}, more than the experts of {} of {} groups",
                   fields.what(), spec.top_k, top, groups);
  }
  spec.groups = static_cast<int>(groups);
  spec.top_groups = static_cast<int>(top);
  return {};
}

Status parse_moe(const JsonFields& fields, MoeSpec& spec) {
  spec.rule = RouterRule::kSigmoidThenTopK;
  spec.activation = Activation::kRelu2;
  LK_ASSIGN_OR_RETURN(spec.experts, count(fields, "n_routed_experts", kMaxExperts));
  LK_ASSIGN_OR_RETURN(spec.top_k, count(fields, "num_experts_per_tok", spec.experts));
  LK_ASSIGN_OR_RETURN(spec.intermediate, count(fields, "moe_intermediate_size", kMaxWidth));
  LK_RETURN_IF_ERROR(parse_groups(fields, spec));
  LK_ASSIGN_OR_RETURN(spec.normalized, fields.boolean_or("norm_topk_prob", true));
  LK_ASSIGN_OR_RETURN(const double scale,
                      number_between(fields, "routed_scaling_factor", 1, 1e-6, 1e6));
  spec.weight_scale = static_cast<float>(scale);
  if (fields.has("moe_latent_size")) {
    LK_ASSIGN_OR_RETURN(spec.latent, count(fields, "moe_latent_size", kMaxWidth));
  }
  LK_ASSIGN_OR_RETURN(const int64_t shared, fields.integer_or("n_shared_experts", 1, 0, 64));
  if (shared > 0) {
    LK_ASSIGN_OR_RETURN(const int64_t width, fields.integer("moe_shared_expert_intermediate_size",
                                                            1, kMaxWidth / shared));
    spec.shared = {.intermediate = static_cast<int>(shared * width)};
  }
  return expect_string(fields, "mlp_hidden_act", "relu2");
}

Result<Config> parse(const HfConfig& files) {
  const JsonFields fields = files.fields();
  Config config;
  LK_ASSIGN_OR_RETURN(config.mixers, parse_mixers(fields));
  LK_ASSIGN_OR_RETURN(config.hidden, fields.integer("hidden_size", 1, kMaxWidth));
  LK_ASSIGN_OR_RETURN(config.vocab, fields.integer("vocab_size", 1, kMaxVocab));
  LK_ASSIGN_OR_RETURN(config.max_positions,
                      fields.integer("max_position_embeddings", 1, kMaxPositions));
  const bool other_name = !fields.has("layer_norm_epsilon") && fields.has("norm_eps");
  LK_ASSIGN_OR_RETURN(
      const double eps,
      number_between(fields, other_name ? "norm_eps" : "layer_norm_epsilon", kRequired, 1e-12, 1));
  config.norm_eps = static_cast<float>(eps);
  LK_ASSIGN_OR_RETURN(config.tied_head, fields.boolean_or("tie_word_embeddings", false));
  for (const char* key : {"use_bias", "mamba_proj_bias", "mlp_bias"}) {
    LK_ASSIGN_OR_RETURN(const bool bias, fields.boolean_or(key, false));
    if (bias) return unsupported("{}: {} is true, expected false", fields.what(), key);
  }
  LK_RETURN_IF_ERROR(parse_attention(fields, config));
  LK_RETURN_IF_ERROR(parse_mamba(fields, config.mamba));
  LK_RETURN_IF_ERROR(parse_moe(fields, config.moe));
  return config;
}

// "layers.<layer>.mixer.<name>".
std::string mixer_path(int layer, std::string_view name) {
  return layer_path(layer, fmt::format("mixer.{}", name));
}

void add_mamba(LinearTable& table, int layer, const Config& config) {
  const MambaSpec& spec = config.mamba;
  const int64_t inner = spec.inner(), channels = spec.channels(), heads = spec.heads;
  const auto add = [&](std::string_view name, Shape shape) {
    table.plain.push_back({mixer_path(layer, name), std::move(shape)});
  };
  table.linears.push_back(module_spec(Stage::kRecurrentIn, layer, mixer_path(layer, "in_proj"),
                                      inner + channels + heads, config.hidden, false));
  table.linears.push_back(module_spec(Stage::kRecurrentOut, layer, mixer_path(layer, "out_proj"),
                                      config.hidden, inner, false));
  add("conv1d.weight", {channels, 1, spec.kernel});
  if (!spec.conv_bias.empty()) add("conv1d.bias", {channels});
  add("A_log", {heads});
  add("D", {heads});
  add("dt_bias", {heads});
  add("norm.weight", {inner});
}

void add_experts(LinearTable& table, int layer, const Config& config) {
  const MoeSpec& moe = config.moe;
  const auto add = [&](Stage stage, std::string_view name, int64_t out, int64_t in) {
    table.linears.push_back(module_spec(stage, layer, mixer_path(layer, name), out, in, false));
  };
  // Modules in published files, parameters in those of Transformers 5.
  const auto add_routed = [&](Stage stage, std::string_view name, int64_t out, int64_t in) {
    LinearSpec spec{
        .stage = stage, .layer = layer, .experts = moe.experts, .out = out, .in = in, .names = {}};
    spec.names.push_back(
        {mixer_path(layer, fmt::format("experts.{{expert}}.{}", name)), NameForm::kExpertModule});
    spec.names.push_back(
        {mixer_path(layer, fmt::format("experts.{}", name)), NameForm::kParameterOutIn});
    table.linears.push_back(std::move(spec));
  };
  add(Stage::kRouter, "gate", moe.experts, config.hidden);
  table.plain.push_back({mixer_path(layer, "gate.e_score_correction_bias"), {moe.experts}});
  if (moe.latent > 0) add(Stage::kLatentIn, "fc1_latent_proj", moe.latent, config.hidden);
  add_routed(Stage::kExpertUp, "up_proj", moe.intermediate, config.expert_width());
  add_routed(Stage::kExpertDown, "down_proj", config.expert_width(), moe.intermediate);
  if (moe.latent > 0) add(Stage::kLatentOut, "fc2_latent_proj", config.hidden, moe.latent);
  if (!moe.shared) return;
  add(Stage::kSharedUp, "shared_experts.up_proj", moe.shared->intermediate, config.hidden);
  add(Stage::kSharedDown, "shared_experts.down_proj", config.hidden, moe.shared->intermediate);
}

Result<LinearTable> table(const HfConfig& files) {
  LK_ASSIGN_OR_RETURN(const Config config, parse(files));
  LinearTable table = decoder_table("nemotron_h", config.tied_head, config.vocab, config.hidden);
  table.prefixes = {"backbone.", "model."};
  table.ignored = {"mtp."};
  table.linears.front().names.insert(table.linears.front().names.begin(), {"embeddings"});
  for (int layer = 0; layer < static_cast<int>(config.mixers.size()); ++layer) {
    table.plain.push_back({layer_path(layer, "norm.weight"), {config.hidden}});
    switch (config.mixers[layer]) {
      case Mixer::kMamba:
        add_mamba(table, layer, config);
        break;
      case Mixer::kAttention:
        add_attention(table, layer,
                      {.hidden = config.hidden,
                       .query = int64_t{config.attention.heads} * config.attention.head_dim,
                       .key_value = int64_t{config.attention.kv_heads} * config.attention.head_dim,
                       .bias = config.attention_bias,
                       .module = "mixer"});
        break;
      case Mixer::kExperts:
        add_experts(table, layer, config);
        break;
      case Mixer::kDense:
        break;  // parse_mixers refuses them
    }
  }
  finish_decoder_table(table, config.vocab, config.hidden);
  table.plain.back().name = "norm_f.weight";
  return table;
}

Result<DecoderSpec> decoder(const HfConfig& files) {
  LK_ASSIGN_OR_RETURN(const Config config, parse(files));
  DecoderSpec spec{.hidden = static_cast<int>(config.hidden),
                   .vocab = static_cast<int>(config.vocab),
                   .max_positions = static_cast<int>(config.max_positions),
                   .norm_eps = config.norm_eps,
                   .final_norm = "norm_f.weight",
                   .rope = {},  // attention does not know positions, whatever rope_theta says
                   .layers = {}};
  for (int i = 0; i < static_cast<int>(config.mixers.size()); ++i) {
    LayerSpec& layer = spec.layers.emplace_back();
    const auto path = [&](std::string_view name) { return mixer_path(i, name); };
    const std::string norm = layer_path(i, "norm.weight");
    switch (config.mixers[i]) {
      case Mixer::kMamba: {
        MambaSpec& mamba = layer.mamba.emplace(config.mamba);
        mamba.norm = norm;
        mamba.conv = path("conv1d.weight");
        if (!mamba.conv_bias.empty()) mamba.conv_bias = path("conv1d.bias");
        mamba.a_log = path("A_log");
        mamba.d = path("D");
        mamba.dt_bias = path("dt_bias");
        mamba.out_norm = path("norm.weight");
        break;
      }
      case Mixer::kAttention:
        layer.attention.emplace(config.attention).norm = norm;
        break;
      case Mixer::kExperts:
        layer.moe.emplace(config.moe).norm = norm;
        layer.moe->correction = path("gate.e_score_correction_bias");
        break;
      case Mixer::kDense:
        break;
    }
  }
  return spec;
}

}  // namespace

extern constinit const ArchRow kArchNemotronH{"nemotron_h", table, decoder};

}  // namespace lk
