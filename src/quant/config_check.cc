#include "quant/config_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "quant/formats.h"

namespace lk {
namespace {

// The module of a tensor that holds codes: its name without the part that the layout adds.
std::string module_of(std::string_view tensor) {
  constexpr std::string_view kEndings[] = {".weight", ".weight_packed", "_blocks"};
  for (std::string_view ending : kEndings) {
    if (tensor.ends_with(ending))
      return std::string(tensor.substr(0, tensor.size() - ending.size()));
  }
  return std::string(tensor);
}

// The module's path under each of the table's root prefixes: files do not agree on them.
std::vector<std::string> spellings(const LinearTable& table, const std::string& path) {
  std::vector<std::string> paths = {path};
  std::string_view found;
  for (const std::string& prefix : table.prefixes) {
    if (prefix.size() > found.size() && path.starts_with(prefix)) found = prefix;
  }
  for (const std::string& prefix : table.prefixes) {
    if (!found.empty() && prefix != found) paths.push_back(prefix + path.substr(found.size()));
  }
  return paths;
}

bool covered(const NamePatterns& patterns, const std::vector<std::string>& paths) {
  return std::any_of(paths.begin(), paths.end(),
                     [&](const std::string& path) { return patterns.covers(path); });
}

const RecipeGroup* group_of(const Recipe& recipe, const std::vector<std::string>& paths) {
  const RecipeGroup* best = nullptr;
  Covered how = Covered::kNot;
  for (const RecipeGroup& group : recipe.groups) {
    if (group.all) return &group;
    for (const std::string& path : paths) {
      const Covered here = group.targets.how(path);
      if (here <= how) continue;
      best = &group;
      how = here;
    }
  }
  return best;
}

std::string format_names(const std::vector<const Format*>& formats) {
  std::vector<std::string_view> names;
  for (const Format* format : formats) names.push_back(format->name);
  return fmt::format("{}", fmt::join(names, " or "));
}

// One kind of contradiction: the first in full, the number of all.
struct Complaint {
  std::string sentence;
  int count = 0;
  void add(std::string text) {
    if (count++ == 0) sentence = std::move(text);
  }
};

// Modules of the checkpoint under every root prefix.
std::vector<std::string> all_modules(const Checkpoint& checkpoint, const LinearTable& table) {
  std::set<std::string> modules;
  for (const auto& [name, view] : checkpoint.tensors()) {
    modules.insert(module_of(name));
    if (const size_t dot = name.rfind('.'); dot != name.npos) modules.insert(name.substr(0, dot));
  }
  std::vector<std::string> paths;
  for (const std::string& module : modules) {
    for (std::string& path : spellings(table, module)) paths.push_back(std::move(path));
  }
  return paths;
}

// Targets of the recipe that are no module of the checkpoint.
std::vector<std::string> unmatched_targets(const Recipe& recipe,
                                           const std::vector<std::string>& modules) {
  std::vector<std::string> names;
  for (const RecipeGroup& group : recipe.groups) {
    for (std::string& name : group.targets.unmatched(modules)) names.push_back(std::move(name));
  }
  return names;
}

void warn_of_unmatched(const Recipe& recipe, const Checkpoint& checkpoint, const LinearTable& table,
                       StoredModel& model) {
  const std::vector<std::string> modules = all_modules(checkpoint, table);
  std::vector<std::string> names = recipe.excluded.unmatched(modules);
  for (std::string& name : unmatched_targets(recipe, modules)) names.push_back(std::move(name));
  if (names.empty()) return;
  model.warnings.push_back(
      fmt::format("{} names modules that the model does not have: {} ({} in all)", recipe.file,
                  names.front().substr(0, 200), names.size()));
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// "gpt_oss" and "GptOssForCausalLM" name the same architecture.
std::string without_marks(const std::string& name) {
  std::string out = lower(name);
  out.erase(std::remove(out.begin(), out.end(), '_'), out.end());
  return out;
}

}  // namespace

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

Status compare_with_recipe(const Recipe& recipe, const Checkpoint& checkpoint,
                           const LinearTable& table, StoredModel& model) {
  std::set<std::string_view> quantized;
  for (const StoredLinear& linear : model.linears) {
    if (is_quantized(*linear.format)) quantized.insert(linear.format->name);
  }
  if (recipe.groups.empty()) {
    if (!quantized.empty()) {
      model.warnings.push_back(fmt::format("{} names no quantization, but the tensors are {}",
                                           recipe.file, fmt::join(quantized, " and ")));
    }
    return {};
  }
  Complaint wrong_format, not_plain, not_quantized;
  for (const StoredLinear& linear : model.linears) {
    for (const StoredTensor& tensor : linear.tensors) {
      if (tensor.role != TensorRole::kCodes) continue;
      const std::string module = module_of(tensor.name);
      const std::vector<std::string> paths = spellings(table, module);
      const bool excluded = covered(recipe.excluded, paths);
      const RecipeGroup* group = excluded ? nullptr : group_of(recipe, paths);
      const bool is = is_quantized(*linear.format);
      if (is && !group && recipe.complete) {
        not_plain.add(fmt::format("{} says that {} is not quantized, but its tensors are {}",
                                  recipe.file, module, linear.format->name));
      } else if (!is && group && recipe.complete && quantizers_take(linear.spec->stage)) {
        not_quantized.add(fmt::format("{} says that {} is quantized as {}, but its tensors are {}",
                                      recipe.file, module, format_names(group->formats),
                                      linear.format->name));
      } else if (is && group &&
                 std::find(group->formats.begin(), group->formats.end(), linear.format) ==
                     group->formats.end()) {
        wrong_format.add(fmt::format("{} says that {} is quantized as {}, but its tensors are {}",
                                     recipe.file, module, format_names(group->formats),
                                     linear.format->name));
      }
    }
  }
  if (quantized.empty() && (!recipe.complete || not_quantized.count > 0)) {
    // A copy turned back to plain weights, with the original's config.
    return invalid(
        "{} says that the model is quantized ({}), but no tensor is; without that recipe it loads "
        "as it stands",
        recipe.file, recipe.method.substr(0, 60));
  }
  for (const Complaint& complaint : {wrong_format, not_plain, not_quantized}) {
    if (complaint.count == 0) continue;
    // A target that names nothing may be why.
    const std::vector<std::string> names =
        unmatched_targets(recipe, all_modules(checkpoint, table));
    return invalid("{} ({} modules in all){}", complaint.sentence, complaint.count,
                   names.empty() ? ""
                                 : fmt::format("; the target {} is no module of the model",
                                               names.front().substr(0, 200)));
  }
  warn_of_unmatched(recipe, checkpoint, table, model);
  return {};
}

}  // namespace lk
