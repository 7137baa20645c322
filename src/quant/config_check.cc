#include "quant/config_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>

#include "quant/formats.h"

namespace lk {
namespace {

// What a file claims.
struct Claim {
  std::string file;                   // "config.json"
  std::string method;                 // lower case; empty if the file gives none
  std::vector<std::string> excluded;  // modules that are not quantized; '*' stands for anything
  bool has_excluded = false;
};

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_plain(const Format& format) { return format.scale == ScaleCodec::kNone; }

// Whether `pattern` covers the module `path`: as a whole, or as the start of its path up to a dot.
// Linear in text times stars: the last star alone is retried.
bool covers(std::string_view pattern, std::string_view path) {
  size_t p = 0, t = 0, star = pattern.npos, resume = 0;
  while (true) {
    if (p == pattern.size() && (t == path.size() || path[t] == '.')) return true;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && t < path.size() && pattern[p] == path[t]) {
      ++p;
      ++t;
    } else if (star != pattern.npos && resume < path.size()) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
}

Result<Claim> read_claim(const JsonFields& fields, std::string file, std::string_view method,
                         std::string_view excluded) {
  Claim claim;
  claim.file = std::move(file);
  LK_ASSIGN_OR_RETURN(claim.method, fields.string_or(method, ""));
  claim.method = lower(claim.method);
  if (fields.has(excluded)) {
    LK_ASSIGN_OR_RETURN(claim.excluded, fields.strings(excluded));
    claim.has_excluded = true;
  }
  return claim;
}

// The config's claim; one without a method when no file speaks of quantization.
Result<Claim> find_claim(const HfConfig& config) {
  const JsonFields fields = config.fields();
  if (fields.has("quantization_config")) {
    LK_ASSIGN_OR_RETURN(JsonFields quantization, fields.object("quantization_config"));
    const bool ignore = !quantization.has("modules_to_not_convert") && quantization.has("ignore");
    return read_claim(quantization, "config.json", "quant_method",
                      ignore ? "ignore" : "modules_to_not_convert");
  }
  if (config.hf_quant_config) {
    const JsonFields file(*config.hf_quant_config, "hf_quant_config.json");
    LK_ASSIGN_OR_RETURN(JsonFields quantization, file.object("quantization"));
    return read_claim(quantization, "hf_quant_config.json", "quant_algo", "exclude_modules");
  }
  return Claim{"config.json", "", {}, false};
}

// Methods that name a family of layouts rather than one format.
bool names_no_format(const std::string& method) {
  return method == "compressed-tensors" || method == "modelopt";
}

// Modules on the wrong side of the exclusion list: the first by name, the others by number.
void compare_modules(const Claim& claim, const LinearTable& table, const std::string& prefix,
                     StoredModel& model) {
  std::string first_quantized, first_plain;
  int quantized = 0, plain = 0;
  for (const StoredLinear& linear : model.linears) {
    if (linear.tensors.empty()) continue;  // a tied head
    const std::string path = table.full_name(linear.spec->path(), prefix);
    const bool excluded =
        std::any_of(claim.excluded.begin(), claim.excluded.end(),
                    [&](const std::string& pattern) { return covers(pattern, path); });
    if (excluded && !is_plain(*linear.format) && quantized++ == 0) first_quantized = path;
    if (!excluded && is_plain(*linear.format) && plain++ == 0) first_plain = path;
  }
  if (quantized > 0) {
    model.warnings.push_back(
        fmt::format("{} says that {} is not quantized, but its tensors are ({} modules in all)",
                    claim.file, first_quantized, quantized));
  }
  if (plain > 0) {
    model.warnings.push_back(
        fmt::format("{} says that {} is quantized, but its tensors are not ({} modules in all)",
                    claim.file, first_plain, plain));
  }
}

// "gpt_oss" and "GptOssForCausalLM" name the same architecture.
std::string without_marks(const std::string& name) {
  std::string out = lower(name);
  out.erase(std::remove(out.begin(), out.end(), '_'), out.end());
  return out;
}

void compare_architectures(const HfConfig& config, StoredModel& model) {
  const JsonFields fields = config.fields();
  if (!fields.has("architectures")) return;
  const auto named = fields.strings("architectures");
  if (!named) {
    model.warnings.push_back(named.error().message);
    return;
  }
  std::string type = without_marks(config.model_type());
  if (constexpr std::string_view kText = "text";
      type.size() > kText.size() &&
      type.compare(type.size() - kText.size(), kText.npos, kText) == 0)
    type.resize(type.size() - kText.size());  // the text part of a model that also sees
  for (const std::string& name : *named) {
    if (without_marks(name).rfind(type, 0) == 0) continue;
    model.warnings.push_back(
        fmt::format("config.json: architectures names {}, but model_type is {}, which is followed",
                    name.substr(0, 60), config.model_type().substr(0, 60)));
  }
}

}  // namespace

void compare_with_config(const HfConfig& config, const LinearTable& table,
                         const std::string& prefix, StoredModel& model) {
  compare_architectures(config, model);
  auto claim = find_claim(config);
  if (!claim) {
    model.warnings.push_back(claim.error().message);
    return;
  }
  std::set<std::string_view> quantized;
  for (const StoredLinear& linear : model.linears) {
    if (!is_plain(*linear.format)) quantized.insert(linear.format->name);
  }
  if (claim->method.empty()) {
    if (!quantized.empty()) {
      model.warnings.push_back(fmt::format("{} names no quantization, but the tensors are {}",
                                           claim->file, fmt::join(quantized, " and ")));
    }
    return;
  }
  if (quantized.empty()) {
    model.warnings.push_back(
        fmt::format("{} says that the model is quantized ({}), but no tensor is", claim->file,
                    claim->method.substr(0, 60)));
    return;
  }
  if (!names_no_format(claim->method) && !quantized.count(claim->method)) {
    model.warnings.push_back(
        fmt::format("{} says that the model is quantized as {}, but the tensors are {}",
                    claim->file, claim->method.substr(0, 60), fmt::join(quantized, " and ")));
  }
  if (claim->has_excluded) compare_modules(*claim, table, prefix, model);
}

}  // namespace lk
