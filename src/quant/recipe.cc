#include "quant/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <nlohmann/json.hpp>

#include "quant/formats.h"

namespace lk {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::vector<const Format*> formats_where(const std::function<bool(const Format&)>& fits) {
  std::vector<const Format*> formats;
  for (const Format* format : all_formats()) {
    if (is_quantized(*format) && fits(*format)) formats.push_back(format);
  }
  return formats;
}

std::vector<const Format*> formats_called(const std::string& name) {
  return formats_where([&](const Format& format) {
    return std::find(format.recipe_names.begin(), format.recipe_names.end(), name) !=
           format.recipe_names.end();
  });
}

// The words that formats go by, each once, behind `names`.
template <typename Words>
std::string known_words(std::vector<std::string_view> names, Words words) {
  for (const Format* format : all_formats()) {
    for (std::string_view name : words(*format)) {
      if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<std::vector<const Format*>> formats_of_algorithm(const JsonFields& fields,
                                                        std::string_view key) {
  LK_ASSIGN_OR_RETURN(const std::string name, fields.string(key));
  std::vector<const Format*> formats = formats_called(lower(name));
  if (formats.empty()) {
    std::vector<std::string_view> tools;
    if (key == "quant_method") tools = {"compressed-tensors", "modelopt"};
    return unsupported(
        "{}: {} \"{}\" is not supported; known are {}", fields.what(), key, name.substr(0, 60),
        known_words(std::move(tools), [](const Format& format) { return format.recipe_names; }));
  }
  if (!fields.has("group_size")) return formats;
  LK_ASSIGN_OR_RETURN(const int64_t group, fields.integer("group_size", 0, 1 << 20));
  const int known = formats.front()->group_cols;
  if (known > 1 && group != known) {
    return unsupported("{}: group_size is {}, but {} has groups of {}", fields.what(), group,
                       formats.front()->name, known);
  }
  return formats;
}

Result<std::pair<int64_t, int64_t>> block_of(const JsonFields& fields, std::string_view key) {
  const Json& block = *fields.json().find(key);
  const auto is_extent = [](const Json& value) {
    return value.is_number_integer() && value.get<int64_t>() > 0;
  };
  if (!block.is_array() || block.size() != 2 || !is_extent(block[0]) || !is_extent(block[1])) {
    return invalid("{}: field {} is no pair of block extents", fields.what(), key);
  }
  return std::pair(block[0].get<int64_t>(), block[1].get<int64_t>());
}

// Formats of `element` whose groups are rows x cols (0: all).
Result<std::vector<const Format*>> formats_of_groups(const JsonFields& fields, Element element,
                                                     int64_t rows, int64_t cols) {
  auto formats = formats_where([&](const Format& format) {
    return format.element == element && format.group_rows == rows && format.group_cols == cols;
  });
  if (!formats.empty()) return formats;
  return unsupported(
      "{}: weights of {} bits whose scales span {} rows and {} channels (0: all) are not "
      "supported",
      fields.what(), element_bits(element), rows, cols);
}

// Transformers' "fp8": blocks, or one scale where there are none.
Result<std::vector<const Format*>> formats_of_transformers(const JsonFields& fields) {
  LK_ASSIGN_OR_RETURN(const auto named, formats_of_algorithm(fields, "quant_method"));
  LK_ASSIGN_OR_RETURN(const std::string codes, fields.string_or("fmt", "e4m3"));
  if (codes != "e4m3") {
    return unsupported("{}: fmt \"{}\" is not supported, expected e4m3", fields.what(),
                       codes.substr(0, 60));
  }
  LK_ASSIGN_OR_RETURN(const std::string scheme, fields.string_or("activation_scheme", "dynamic"));
  if (scheme != "dynamic" && scheme != "static") {
    return unsupported("{}: activation_scheme \"{}\" is not supported, expected dynamic or static",
                       fields.what(), scheme.substr(0, 60));
  }
  if (fields.has("weight_block_size")) {
    LK_ASSIGN_OR_RETURN(const auto block, block_of(fields, "weight_block_size"));
    return formats_of_groups(fields, Element::kE4M3, block.first, block.second);
  }
  return named;
}

// The `weights` of one config group of compressed-tensors.
Result<std::vector<const Format*>> formats_of_arguments(const JsonFields& weights) {
  LK_ASSIGN_OR_RETURN(const int64_t bits, weights.integer("num_bits", 1, 64));
  LK_ASSIGN_OR_RETURN(const std::string type, weights.string_or("type", "int"));
  LK_ASSIGN_OR_RETURN(const std::string strategy, weights.string_or("strategy", "tensor"));
  if (type != "float" || (bits != 4 && bits != 8)) {
    return unsupported("{}: weights of type {} with {} bits are not supported", weights.what(),
                       type.substr(0, 60), bits);
  }
  LK_ASSIGN_OR_RETURN(const bool symmetric, weights.boolean_or("symmetric", true));
  if (!symmetric)
    return unsupported("{}: weights with zero points (symmetric: false) are not supported",
                       weights.what());
  const Element element = bits == 8 ? Element::kE4M3 : Element::kE2M1;
  if (strategy == "tensor") return formats_of_groups(weights, element, 0, 0);
  if (strategy == "channel") return formats_of_groups(weights, element, 1, 0);
  if (strategy == "block") {
    if (!weights.has("block_structure")) {
      return invalid("{}: field block_structure is missing", weights.what());
    }
    LK_ASSIGN_OR_RETURN(const auto block, block_of(weights, "block_structure"));
    return formats_of_groups(weights, element, block.first, block.second);
  }
  if (strategy == "group" || strategy == "tensor_group") {
    LK_ASSIGN_OR_RETURN(const int64_t group, weights.integer("group_size", 1, 1 << 20));
    return formats_of_groups(weights, element, 1, group);
  }
  return unsupported("{}: the strategy \"{}\" is not supported", weights.what(),
                     strategy.substr(0, 60));
}

// Leaves in `formats` those that lie as `packing` says (compressed-tensors' `format`).
Status keep_packed(const JsonFields& where, const std::string& packing,
                   std::vector<const Format*>& formats) {
  const auto lies_so = [&](const Format& format) {
    return std::find(format.packings.begin(), format.packings.end(), packing) !=
           format.packings.end();
  };
  if (formats_where(lies_so).empty()) {
    return unsupported("{}: the format \"{}\" is not supported; known are {}", where.what(),
                       packing.substr(0, 60),
                       known_words({}, [](const Format& format) { return format.packings; }));
  }
  const std::string_view described = formats.front()->name;
  std::erase_if(formats, [&](const Format* format) { return !lies_so(*format); });
  if (!formats.empty()) return {};
  return invalid("{}: the format \"{}\" is not that of the weights described, which are {}",
                 where.what(), packing, described);
}

Status read_config_groups(const JsonFields& fields, Recipe& recipe) {
  LK_ASSIGN_OR_RETURN(const JsonFields groups, fields.object("config_groups"));
  LK_ASSIGN_OR_RETURN(std::string packing, fields.string_or("format", ""));
  if (packing == "mixed-precision") packing.clear();  // each group has its own
  for (const auto& [name, value] : groups.json().items()) {
    LK_ASSIGN_OR_RETURN(const JsonFields group, groups.object(name));
    if (!group.has("weights")) continue;  // activations or the KV cache alone
    LK_ASSIGN_OR_RETURN(const JsonFields weights, group.object("weights"));
    RecipeGroup made;
    LK_ASSIGN_OR_RETURN(made.formats, formats_of_arguments(weights));
    LK_ASSIGN_OR_RETURN(const std::string own, group.string_or("format", packing));
    if (!own.empty())
      LK_RETURN_IF_ERROR(keep_packed(own == packing ? fields : group, own, made.formats));
    LK_ASSIGN_OR_RETURN(const auto targets, group.strings("targets"));
    LK_ASSIGN_OR_RETURN(made.targets, NamePatterns::make(targets, PatternStyle::kCompressedTensors,
                                                         group.what() + ": targets"));
    recipe.groups.push_back(std::move(made));
  }
  recipe.complete = true;
  return {};
}

// ModelOpt's MIXED_PRECISION: each quantized module by name.
Status read_quantized_layers(const JsonFields& fields, Recipe& recipe) {
  LK_ASSIGN_OR_RETURN(const JsonFields layers, fields.object("quantized_layers"));
  std::vector<std::pair<std::vector<const Format*>, std::vector<std::string>>> by_format;
  for (const auto& [name, value] : layers.json().items()) {
    LK_ASSIGN_OR_RETURN(const JsonFields layer, layers.object(name));
    LK_ASSIGN_OR_RETURN(auto formats, formats_of_algorithm(layer, "quant_algo"));
    auto at = std::find_if(by_format.begin(), by_format.end(),
                           [&](const auto& entry) { return entry.first == formats; });
    if (at == by_format.end()) at = by_format.insert(at, {std::move(formats), {}});
    at->second.push_back(name);
  }
  for (auto& [formats, names] : by_format) {
    RecipeGroup group;
    group.formats = std::move(formats);
    LK_ASSIGN_OR_RETURN(group.targets, NamePatterns::make(names, PatternStyle::kModelOpt,
                                                          fields.what() + ": quantized_layers"));
    recipe.groups.push_back(std::move(group));
  }
  recipe.complete = true;
  return {};
}

Status read_excluded(const JsonFields& fields, std::initializer_list<const char*> keys,
                     PatternStyle style, Recipe& recipe) {
  for (const char* key : keys) {
    if (!fields.has(key)) continue;
    LK_ASSIGN_OR_RETURN(const auto names, fields.strings(key));
    LK_ASSIGN_OR_RETURN(recipe.excluded,
                        NamePatterns::make(names, style, fields.what() + ": " + key));
    recipe.complete = true;
    return {};
  }
  return {};
}

// compressed-tensors' sparse weights come in layouts of their own.
Status refuse_sparsity(const JsonFields& fields) {
  if (!fields.has("sparsity_config") || fields.json()["sparsity_config"].empty()) return {};
  LK_ASSIGN_OR_RETURN(const JsonFields sparsity, fields.object("sparsity_config"));
  LK_ASSIGN_OR_RETURN(const std::string format, sparsity.string_or("format", "dense"));
  if (format == "dense") return {};
  return unsupported("{}: sparse weights (format \"{}\") are not supported", sparsity.what(),
                     format.substr(0, 60));
}

Status read_modelopt(const JsonFields& fields, Recipe& recipe) {
  LK_RETURN_IF_ERROR(
      read_excluded(fields, {"exclude_modules", "ignore"}, PatternStyle::kModelOpt, recipe));
  LK_ASSIGN_OR_RETURN(recipe.kv_cache, fields.string_or("kv_cache_quant_algo", ""));
  if (fields.has("kv_cache_scheme")) recipe.kv_cache = "FP8";
  LK_ASSIGN_OR_RETURN(const std::string algorithm, fields.string_or("quant_algo", ""));
  if (!algorithm.empty()) recipe.method = algorithm;
  if (fields.has("quantized_layers")) return read_quantized_layers(fields, recipe);
  if (fields.has("config_groups") && (algorithm.empty() || lower(algorithm) == "mixed_precision")) {
    return read_config_groups(fields, recipe);
  }
  if (algorithm.empty()) {
    recipe.method.clear();  // the KV cache alone is quantized
    return {};
  }
  RecipeGroup group;
  group.all = true;
  LK_ASSIGN_OR_RETURN(group.formats, formats_of_algorithm(fields, "quant_algo"));
  recipe.groups.push_back(std::move(group));
  return {};
}

}  // namespace

Result<Recipe> read_recipe(const HfConfig& config) {
  Recipe recipe;
  recipe.file = "config.json";
  const JsonFields root = config.fields();
  if (!root.has("quantization_config")) {
    if (!config.hf_quant_config) return recipe;
    recipe.file = "hf_quant_config.json";
    const JsonFields file(*config.hf_quant_config, recipe.file);
    LK_ASSIGN_OR_RETURN(const JsonFields fields, file.object("quantization"));
    recipe.method = "modelopt";
    LK_RETURN_IF_ERROR(read_modelopt(fields, recipe));
    return recipe;
  }
  LK_ASSIGN_OR_RETURN(const JsonFields fields, root.object("quantization_config"));
  LK_ASSIGN_OR_RETURN(recipe.method, fields.string_or("quant_method", ""));
  if (recipe.method.empty()) return recipe;
  const std::string method = lower(recipe.method);
  if (method == "modelopt") {
    LK_RETURN_IF_ERROR(read_modelopt(fields, recipe));
    return recipe;
  }
  if (method == "compressed-tensors") {
    LK_RETURN_IF_ERROR(refuse_sparsity(fields));
    LK_RETURN_IF_ERROR(read_excluded(fields, {"ignore"}, PatternStyle::kCompressedTensors, recipe));
    LK_RETURN_IF_ERROR(read_config_groups(fields, recipe));
    if (fields.has("kv_cache_scheme")) recipe.kv_cache = "FP8";
    return recipe;
  }
  LK_RETURN_IF_ERROR(read_excluded(fields, {"modules_to_not_convert", "ignored_layers", "ignore"},
                                   PatternStyle::kTransformers, recipe));
  RecipeGroup group;
  group.all = true;
  LK_ASSIGN_OR_RETURN(group.formats, formats_of_transformers(fields));
  recipe.groups.push_back(std::move(group));
  return recipe;
}

}  // namespace lk
