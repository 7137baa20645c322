#include "model/arch/config_fields.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

namespace lk {

Result<double> number_between(const JsonFields& fields, std::string_view key, double fallback,
                              double min, double max) {
  const bool optional = fallback == fallback;
  LK_ASSIGN_OR_RETURN(double value,
                      optional ? fields.number_or(key, fallback) : fields.number(key));
  if (!(value >= min && value <= max)) {
    return invalid("{}: field {} is {}, expected a number from {} to {}", fields.what(), key, value,
                   min, max);
  }
  return value;
}

Result<int> count(const JsonFields& fields, std::string_view key, int64_t max) {
  LK_ASSIGN_OR_RETURN(int64_t value, fields.integer(key, 1, max));
  return static_cast<int>(value);
}

namespace {

using Names = std::initializer_list<std::string_view>;

// Settings that other models use may change the embedding; none is silently dropped.
Status refuse_other_rope_settings(const JsonFields& rope, Names known, Names also) {
  const auto among = [](Names names, const std::string& key) {
    return std::find(names.begin(), names.end(), key) != names.end();
  };
  for (const auto& [key, value] : rope.json().items()) {
    const bool expected = among(known, key) || among(also, key);
    if (!expected && !value.is_null()) {
      return unsupported("{}: field {} is not supported with this rope_type", rope.what(),
                         key.substr(0, 60));
    }
  }
  return {};
}

// Old and new spelling of the same setting may stand side by side if they agree.
Status refuse_two_ropes(const JsonFields& fields) {
  if (!fields.has("rope_parameters")) return {};
  LK_ASSIGN_OR_RETURN(const JsonFields rope, fields.object("rope_parameters"));
  const auto differs = [&](const Json& other, const std::string& key) {
    return rope.has(key) && other.contains(key) && other[key] != rope.json()[key];
  };
  if (differs(fields.json(), "rope_theta"))
    return invalid("{}: rope_theta differs from that of rope_parameters", fields.what());
  if (!fields.has("rope_scaling")) return {};
  LK_ASSIGN_OR_RETURN(const JsonFields old, fields.object("rope_scaling"));
  for (const auto& [key, value] : old.json().items()) {
    if (differs(old.json(), key)) {
      return invalid("{}: {} differs in rope_scaling and rope_parameters", fields.what(),
                     key.substr(0, 60));
    }
  }
  return {};
}

Result<RopeConfig> parse_yarn(const JsonFields& fields, const JsonFields& scaling, Names also,
                              RopeConfig rope) {
  rope.yarn = true;
  LK_RETURN_IF_ERROR(
      refuse_other_rope_settings(scaling,
                                 {"rope_type", "type", "rope_theta", "factor", "beta_fast",
                                  "beta_slow", "original_max_position_embeddings", "truncate"},
                                 also));
  LK_ASSIGN_OR_RETURN(rope.factor, number_between(scaling, "factor", kRequired, 1, 1e6));
  LK_ASSIGN_OR_RETURN(rope.beta_fast, number_between(scaling, "beta_fast", 32, 1e-3, 1e6));
  LK_ASSIGN_OR_RETURN(rope.beta_slow, number_between(scaling, "beta_slow", 1, 1e-3, 1e6));
  if (rope.beta_fast <= rope.beta_slow) {
    return invalid("{}: beta_fast is {}, expected more than beta_slow = {}", scaling.what(),
                   rope.beta_fast, rope.beta_slow);
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  if (!scaling.has(kOriginal) && fields.has("initial_context_length")) {
    LK_ASSIGN_OR_RETURN(rope.original_max_position_embeddings,
                        fields.integer("initial_context_length", 1, kMaxPositions));
  } else {
    LK_ASSIGN_OR_RETURN(rope.original_max_position_embeddings,
                        scaling.integer(kOriginal, 1, kMaxPositions));
  }
  LK_ASSIGN_OR_RETURN(rope.truncate, scaling.boolean_or("truncate", true));
  return rope;
}

}  // namespace

Result<RopeConfig> parse_rope(const JsonFields& fields, double default_theta, Names also) {
  RopeConfig rope;
  LK_RETURN_IF_ERROR(refuse_two_ropes(fields));
  const char* key = fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!fields.has(key)) {
    LK_ASSIGN_OR_RETURN(rope.theta, number_between(fields, "rope_theta", default_theta, 2, 1e12));
    return rope;
  }
  LK_ASSIGN_OR_RETURN(JsonFields scaling, fields.object(key));
  const JsonFields& holder = scaling.has("rope_theta") ? scaling : fields;
  LK_ASSIGN_OR_RETURN(rope.theta, number_between(holder, "rope_theta", default_theta, 2, 1e12));
  LK_ASSIGN_OR_RETURN(
      std::string type,
      scaling.string(scaling.has("type") && !scaling.has("rope_type") ? "type" : "rope_type"));
  if (type == "default") {
    LK_RETURN_IF_ERROR(
        refuse_other_rope_settings(scaling, {"rope_type", "type", "rope_theta"}, also));
    return rope;
  }
  if (type == "yarn") return parse_yarn(fields, scaling, also, rope);
  return unsupported("{}: rope_type is {}, expected yarn or default", scaling.what(),
                     type.substr(0, 60));
}

Rope make_rope(const RopeConfig& config, int dim) {
  if (!config.yarn) return default_rope(dim, config.theta);
  return yarn_rope(
      {.dim = dim,
       .theta = config.theta,
       .factor = config.factor,
       .beta_fast = config.beta_fast,
       .beta_slow = config.beta_slow,
       .original_max_positions = static_cast<double>(config.original_max_position_embeddings),
       .truncate = config.truncate});
}

std::string layer_path(int layer, std::string_view module) {
  return fmt::format("layers.{}.{}", layer, module);
}

LinearSpec module_spec(Stage stage, int layer, std::string path, int64_t out, int64_t in,
                       bool bias) {
  LinearSpec spec{.stage = stage, .layer = layer, .out = out, .in = in, .bias = bias, .names = {}};
  spec.names.push_back({std::move(path)});
  return spec;
}

Result<int> kv_head_count(const JsonFields& fields, int heads, bool optional) {
  if (optional && !fields.has("num_key_value_heads")) return heads;
  LK_ASSIGN_OR_RETURN(const int kv_heads, count(fields, "num_key_value_heads", heads));
  if (heads % kv_heads != 0) {
    return invalid("{}: num_attention_heads is {}, expected a multiple of num_key_value_heads = {}",
                   fields.what(), heads, kv_heads);
  }
  return kv_heads;
}

Status expect_string(const JsonFields& fields, std::string_view key, std::string_view expected) {
  LK_ASSIGN_OR_RETURN(const std::string value, fields.string_or(key, std::string(expected)));
  if (value == expected) return {};
  return unsupported("{}: {} is {}, expected {}", fields.what(), key, value.substr(0, 60),
                     expected);
}

LinearTable decoder_table(std::string architecture, bool tied_head, int64_t vocab, int64_t hidden) {
  LinearTable table;
  table.architecture = std::move(architecture);
  table.prefixes = {"model."};
  table.rootless = {"lm_head"};
  table.tied_head = tied_head;
  table.linears.push_back(module_spec(Stage::kEmbedding, -1, "embed_tokens", vocab, hidden, false));
  return table;
}

void add_attention(LinearTable& table, int layer, const AttentionShape& shape) {
  const auto add = [&](Stage stage, std::string_view name, int64_t out, int64_t in) {
    const std::string path = layer_path(layer, fmt::format("{}.{}", shape.module, name));
    table.linears.push_back(module_spec(stage, layer, path, out, in, shape.bias));
  };
  add(Stage::kQuery, "q_proj", shape.gated ? 2 * shape.query : shape.query, shape.hidden);
  add(Stage::kKey, "k_proj", shape.key_value, shape.hidden);
  add(Stage::kValue, "v_proj", shape.key_value, shape.hidden);
  add(Stage::kAttentionOut, "o_proj", shape.hidden, shape.query);
}

void finish_decoder_table(LinearTable& table, int64_t vocab, int64_t hidden) {
  table.linears.push_back(module_spec(Stage::kHead, -1, "lm_head", vocab, hidden, false));
  table.plain.push_back({"norm.weight", {hidden}});
}

}  // namespace lk
