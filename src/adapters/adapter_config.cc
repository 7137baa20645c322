#include "adapters/adapter_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace lk {
namespace {

constexpr int64_t kMaxConfigRank = 1 << 20;
constexpr double kMaxAlpha = 1e9;
constexpr size_t kMaxPatterns = 100000;

// What a field means for a server. Fields that parse_adapter_config reads itself are kRead.
enum class Role : uint8_t { kRead, kInformative, kRefused };
struct FieldRow {
  std::string_view name;
  Role role;
  std::string_view asks_for =
      {};  // kRefused: what a value other than null, false or empty asks for
};

constexpr FieldRow kFields[] = {
    {"peft_type", Role::kRead},
    {"peft_version", Role::kRead},
    {"r", Role::kRead},
    {"lora_alpha", Role::kRead},
    {"use_rslora", Role::kRead},
    {"rank_pattern", Role::kRead},
    {"alpha_pattern", Role::kRead},
    {"target_modules", Role::kRead},
    {"exclude_modules", Role::kRead},
    {"target_parameters", Role::kRead},
    {"layers_to_transform", Role::kRead},
    {"init_lora_weights", Role::kRead},
    {"bias", Role::kRead},
    {"task_type", Role::kInformative},
    {"inference_mode", Role::kInformative},
    {"auto_mapping", Role::kInformative},
    {"base_model_name_or_path", Role::kInformative},
    {"revision", Role::kInformative},
    {"lora_dropout", Role::kInformative},
    {"layers_pattern", Role::kInformative},
    {"megatron_config", Role::kInformative},
    {"megatron_core", Role::kInformative},
    {"runtime_config", Role::kInformative},
    {"ensure_weight_tying", Role::kInformative},
    {"qalora_group_size", Role::kInformative},
    {"loftq_config", Role::kInformative},
    {"eva_config", Role::kInformative},
    {"corda_config", Role::kInformative},
    {"lora_ga_config", Role::kInformative},
    // Written by other trainers; they concern training alone.
    {"lora_dtype", Role::kInformative},
    {"lorap_lr_ratio", Role::kInformative},
    {"lorap_emb_lr", Role::kInformative},
    {"merge_weights", Role::kInformative},
    {"unsloth_version", Role::kInformative},
    {"use_dora", Role::kRefused, "DoRA"},
    {"lora_bias", Role::kRefused, "a bias beside lora_B"},
    {"modules_to_save", Role::kRefused, "fully trained modules"},
    {"fan_in_fan_out", Role::kRefused, "Conv1D weights"},
    {"layer_replication", Role::kRefused, "replicated layers, which are another model"},
    {"trainable_token_indices", Role::kRefused, "trained token embeddings"},
    {"alora_invocation_tokens", Role::kRefused, "an activated LoRA (aLoRA)"},
    {"alora_invocation_string", Role::kRefused, "an activated LoRA (aLoRA)"},
    {"use_qalora", Role::kRefused, "QALoRA"},
    {"use_bdlora", Role::kRefused, "block-diagonal LoRA (BD-LoRA)"},
    {"arrow_config", Role::kRefused, "Arrow routing between adapters"},
    {"kasa_config", Role::kRefused, "KaSA"},
    {"velora_config", Role::kRefused, "VeLoRA"},
    {"monteclora_config", Role::kRefused, "Monte Carlo LoRA"},
};

bool is_neutral(const OrderedJson& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  return (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_structured() && value.empty());
}

// A value for a sentence: short whatever the file holds.
std::string shown(const OrderedJson& value) {
  std::string text = value.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

class Reader {
 public:
  Reader(const OrderedJson& object, std::string_view what) : object_(object), what_(what) {}

  const OrderedJson* get(std::string_view key) const {
    const auto it = object_.find(std::string(key));
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  tl::unexpected<Error> wrong(std::string_view key, std::string_view expected) const {
    return invalid("{}: '{}' must be {}, found {}", what_, key, expected, shown(*get(key)));
  }

  Result<int64_t> rank(const OrderedJson& value, std::string_view key) const {
    const bool counts =
        value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() > 0);
    if (!counts || value.get<uint64_t>() < 1 || value.get<uint64_t>() > kMaxConfigRank) {
      return invalid("{}: '{}' must be a rank of 1 to {}, found {}", what_, key, kMaxConfigRank,
                     shown(value));
    }
    return value.get<int64_t>();
  }

  Result<double> alpha(const OrderedJson& value, std::string_view key) const {
    if (!value.is_number() || !(std::fabs(value.get<double>()) <= kMaxAlpha)) {
      return invalid("{}: '{}' must be a number of at most {:.0e}, found {}", what_, key, kMaxAlpha,
                     shown(value));
    }
    return value.get<double>();
  }

  Result<bool> boolean(std::string_view key) const {
    const OrderedJson* value = get(key);
    if (!value) return false;
    if (!value->is_boolean()) return wrong(key, "true or false");
    return value->get<bool>();
  }

  Result<std::vector<PatternValue>> patterns(std::string_view key, bool ranks) const {
    std::vector<PatternValue> out;
    const OrderedJson* object = get(key);
    if (!object) return out;
    if (!object->is_object()) return wrong(key, "an object from name patterns to numbers");
    if (object->size() > kMaxPatterns) {
      return invalid("{}: '{}' has {} entries, more than the {} allowed", what_, key,
                     object->size(), kMaxPatterns);
    }
    for (const auto& [pattern, value] : object->items()) {
      const std::string where = fmt::format("{}: '{}'", what_, key);
      LK_ASSIGN_OR_RETURN(NamePattern compiled,
                          NamePattern::compile(pattern, NamePattern::Mode::kSuffix, where));
      double number = 0;
      if (ranks) {
        LK_ASSIGN_OR_RETURN(number, rank(value, fmt::format("{}' of '{}", key, pattern)));
      } else {
        LK_ASSIGN_OR_RETURN(number, alpha(value, fmt::format("{}' of '{}", key, pattern)));
      }
      out.push_back({std::move(compiled), number});
    }
    return out;
  }

  Result<std::vector<std::string>> strings(std::string_view key) const {
    std::vector<std::string> out;
    const OrderedJson* list = get(key);
    if (!list) return out;
    if (!list->is_array()) return wrong(key, "a list of names");
    if (list->size() > kMaxPatterns) {
      return invalid("{}: '{}' has {} entries, more than the {} allowed", what_, key, list->size(),
                     kMaxPatterns);
    }
    for (const OrderedJson& item : *list) {
      if (!item.is_string() || item.get_ref<const std::string&>().empty())
        return wrong(key, "a list of names");
      out.push_back(item.get<std::string>());
    }
    return out;
  }

  Result<ModuleSelection> modules(std::string_view key) const {
    ModuleSelection out;
    const OrderedJson* value = get(key);
    if (!value || is_neutral(*value)) return out;
    if (value->is_string()) {
      const auto& text = value->get_ref<const std::string&>();
      std::string lower = text;
      std::transform(lower.begin(), lower.end(), lower.begin(),
                     [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
      if (lower == "all-linear") {
        out.form = ModuleSelection::Form::kAllLinear;
        return out;
      }
      LK_ASSIGN_OR_RETURN(out.pattern, NamePattern::compile(text, NamePattern::Mode::kWhole,
                                                            fmt::format("{}: '{}'", what_, key)));
      out.form = ModuleSelection::Form::kPattern;
      return out;
    }
    LK_ASSIGN_OR_RETURN(out.suffixes, strings(key));
    out.form = ModuleSelection::Form::kSuffixes;
    return out;
  }

  Result<std::vector<int64_t>> layers(std::string_view key) const {
    std::vector<int64_t> out;
    const OrderedJson* value = get(key);
    if (!value) return out;
    if (value->is_number_integer()) return std::vector<int64_t>{value->get<int64_t>()};
    if (!value->is_array() || value->size() > kMaxPatterns)
      return wrong(key, "a layer number or a list of them");
    for (const OrderedJson& item : *value) {
      if (!item.is_number_integer()) return wrong(key, "a layer number or a list of them");
      out.push_back(item.get<int64_t>());
    }
    return out;
  }

 private:
  const OrderedJson& object_;
  std::string_view what_;
};

Status check_fields(const OrderedJson& object, std::string_view what) {
  for (const auto& [key, value] : object.items()) {
    if (is_neutral(value)) continue;
    const auto* row = std::find_if(std::begin(kFields), std::end(kFields),
                                   [&](const FieldRow& r) { return r.name == key; });
    if (row == std::end(kFields)) {
      return unsupported(
          "{}: the field '{}' = {} is unknown and may change what the adapter computes", what, key,
          shown(value));
    }
    if (row->role == Role::kRefused) {
      return unsupported("{}: '{}' = {} asks for {}, which is not supported", what, key,
                         shown(value), row->asks_for);
    }
  }
  return {};
}

// PEFT has defaults for what is absent and fails for these as null.
Status check_not_null(const OrderedJson& object, std::string_view what) {
  for (const char* key : {"r", "lora_alpha"}) {
    const auto field = object.find(key);
    if (field != object.end() && field->is_null())
      return invalid("{}: '{}' must be a number, found null", what, key);
  }
  return {};
}

Status check_kind(const Reader& reader, std::string_view what) {
  const OrderedJson* type = reader.get("peft_type");
  if (!type) return invalid("{}: 'peft_type' is missing, expected \"LORA\"", what);
  if (!type->is_string() || type->get_ref<const std::string&>() != "LORA") {
    return unsupported("{}: 'peft_type' must be \"LORA\", found {}", what, shown(*type));
  }
  const OrderedJson* bias = reader.get("bias");
  if (bias && *bias != "none") {
    return unsupported("{}: 'bias' must be \"none\", found {} (trained biases are not supported)",
                       what, shown(*bias));
  }
  return {};
}

// These initialisations subtract something from the base weights before training starts.
void warn_of_changed_base(const Reader& reader, std::vector<std::string>& warnings) {
  const OrderedJson* init = reader.get("init_lora_weights");
  if (!init || !init->is_string()) return;
  const auto& text = init->get_ref<const std::string&>();
  for (std::string_view method : {"pissa", "olora", "corda", "loftq", "lora_ga"}) {
    if (text.rfind(method, 0) == 0) {
      warnings.push_back(fmt::format(
          "'init_lora_weights' = {} changed the base weights at training time; unless the adapter "
          "was converted back when saved, it does not fit the original base",
          shown(*init)));
      return;
    }
  }
}

// Up to PEFT 0.13 a key found in rank_pattern was used for alpha_pattern too.
void warn_of_old_patterns(AdapterConfig& config) {
  if (config.peft_version || config.rank_pattern.empty() || config.alpha_pattern.empty()) return;
  const bool same = std::equal(config.rank_pattern.begin(), config.rank_pattern.end(),
                               config.alpha_pattern.begin(), config.alpha_pattern.end(),
                               [](const PatternValue& a, const PatternValue& b) {
                                 return a.pattern.text() == b.pattern.text();
                               });
  if (!same) {
    config.warnings.push_back(
        "rank_pattern and alpha_pattern have different keys and there is no peft_version; each is "
        "looked up on its "
        "own, as PEFT 0.14 and later do");
  }
}

Result<std::optional<double>> first_match(const std::vector<PatternValue>& patterns,
                                          std::string_view path, const MatchBudget& budget) {
  if (!patterns.empty()) LK_RETURN_IF_ERROR(budget.check(patterns.front().pattern.text()));
  for (const PatternValue& row : patterns) {
    LK_ASSIGN_OR_RETURN(const bool hit, row.pattern.matches(path, budget));
    if (hit) return std::optional<double>(row.value);
  }
  return std::optional<double>();
}

}  // namespace

std::optional<PeftVersion> PeftVersion::parse(std::string_view text) {
  PeftVersion version;
  int* const parts[] = {&version.major, &version.minor, &version.patch};
  const char* p = text.data();
  const char* const end = p + text.size();
  for (int i = 0; i < 3; ++i) {
    if (i > 0 && (p == end || *p++ != '.')) return std::nullopt;
    const auto [next, error] = std::from_chars(p, end, *parts[i]);
    if (error != std::errc() || next == p || *parts[i] < 0) return std::nullopt;
    p = next;
  }
  const std::string_view rest(p, static_cast<size_t>(end - p));
  if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return std::nullopt;
  // Release candidates and post releases count as their release.
  version.dev = rest.rfind(".dev", 0) == 0;
  return version;
}

std::string PeftVersion::text() const {
  return fmt::format("{}.{}.{}{}", major, minor, patch, dev ? ".dev" : "");
}

bool PeftVersion::at_least(int other_major, int other_minor, int other_patch) const {
  if (major != other_major) return major > other_major;
  if (minor != other_minor) return minor > other_minor;
  return patch >= other_patch;
}

Result<AdapterConfig::Scaling> AdapterConfig::scaling(std::string_view path,
                                                      const MatchBudget& budget) const {
  LK_ASSIGN_OR_RETURN(const auto own_rank, first_match(rank_pattern, path, budget));
  LK_ASSIGN_OR_RETURN(const auto own_alpha, first_match(alpha_pattern, path, budget));
  const double rank = own_rank.value_or(static_cast<double>(r));
  const double alpha = own_alpha.value_or(lora_alpha);
  return Scaling{static_cast<int64_t>(rank),
                 static_cast<float>(alpha / (use_rslora ? std::sqrt(rank) : rank))};
}

Result<AdapterConfig> parse_adapter_config(std::string_view text, std::string_view what) {
  LK_ASSIGN_OR_RETURN(const OrderedJson object, parse_ordered_json(text, what));
  if (!object.is_object()) return invalid("{} must be a JSON object", what);
  const Reader reader(object, what);
  LK_RETURN_IF_ERROR(check_kind(reader, what));
  LK_RETURN_IF_ERROR(check_fields(object, what));
  LK_RETURN_IF_ERROR(check_not_null(object, what));

  AdapterConfig config;
  if (const OrderedJson* r = reader.get("r")) {
    LK_ASSIGN_OR_RETURN(config.r, reader.rank(*r, "r"));
  }
  if (const OrderedJson* alpha = reader.get("lora_alpha")) {
    LK_ASSIGN_OR_RETURN(config.lora_alpha, reader.alpha(*alpha, "lora_alpha"));
  }
  LK_ASSIGN_OR_RETURN(config.use_rslora, reader.boolean("use_rslora"));
  LK_ASSIGN_OR_RETURN(config.rank_pattern, reader.patterns("rank_pattern", true));
  LK_ASSIGN_OR_RETURN(config.alpha_pattern, reader.patterns("alpha_pattern", false));
  LK_ASSIGN_OR_RETURN(config.target_modules, reader.modules("target_modules"));
  LK_ASSIGN_OR_RETURN(config.exclude_modules, reader.modules("exclude_modules"));
  LK_ASSIGN_OR_RETURN(config.target_parameters, reader.strings("target_parameters"));
  LK_ASSIGN_OR_RETURN(config.layers_to_transform, reader.layers("layers_to_transform"));

  if (const OrderedJson* version = reader.get("peft_version")) {
    if (!version->is_string()) return reader.wrong("peft_version", "a string");
    config.peft_version = PeftVersion::parse(version->get_ref<const std::string&>());
    if (!config.peft_version) {
      config.warnings.push_back(
          fmt::format("'peft_version' {} is not understood and is ignored", shown(*version)));
    }
  }
  if (config.lora_alpha == 0) {
    config.warnings.push_back(
        "'lora_alpha' is 0: where alpha_pattern says nothing else, the adapter does nothing");
  }
  warn_of_changed_base(reader, config.warnings);
  warn_of_old_patterns(config);
  return config;
}

}  // namespace lk
