// adapter_config.json of a PEFT LoRA adapter, checked field by field. Immutable after parse;
// thread-safe to read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "adapters/name_pattern.h"
#include "base/result.h"

namespace lk {

// "0.18.1.dev0@hash" is a development build between two releases: dev is true, the numbers are
// those written.
struct PeftVersion {
  int major = 0, minor = 0, patch = 0;
  bool dev = false;

  static std::optional<PeftVersion> parse(std::string_view text);
  std::string text() const;
  bool at_least(int other_major, int other_minor, int other_patch) const;
};

// target_modules or exclude_modules in any of its forms.
struct ModuleSelection {
  enum class Form : uint8_t { kNone, kSuffixes, kPattern, kAllLinear };
  Form form = Form::kNone;
  std::vector<std::string> suffixes;   // kSuffixes
  std::optional<NamePattern> pattern;  // kPattern
};

struct PatternValue {
  NamePattern pattern;
  double value;
};

struct AdapterConfig {
  int64_t r = 8;  // PEFT's defaults
  double lora_alpha = 8;
  bool use_rslora = false;
  std::vector<PatternValue> rank_pattern;  // in file order: the first match wins
  std::vector<PatternValue> alpha_pattern;
  ModuleSelection target_modules;
  ModuleSelection exclude_modules;
  std::vector<int64_t> layers_to_transform;  // empty: all
  std::vector<std::string> target_parameters;
  std::optional<PeftVersion> peft_version;
  std::vector<std::string> warnings;

  struct Scaling {
    int64_t rank;  // as the configuration says, which the tensors may contradict
    float scale;   // alpha / rank, or alpha / sqrt(rank) with rsLoRA
  };
  // `path`: module path in the trained model without "base_model.model."; for a parameter target
  // the parameter's path. Source: PEFT >= 0.15, get_pattern_key and LoraLayer.update_layer.
  Result<Scaling> scaling(std::string_view path, const MatchBudget& budget) const;
};

// `what` names the file in sentences. Errors: kInvalid (syntax, types, ranges), kUnsupported (a
// field that asks for more than plain LoRA, or an unknown field that is set), each naming the
// field.
Result<AdapterConfig> parse_adapter_config(std::string_view text, std::string_view what);

}  // namespace lk
