#include "adapters/targets.h"

#include <algorithm>

#include "adapters/tensor_groups.h"

namespace lk {
namespace {

// The name by which target_parameters knows a linear.
std::string parameter_key(const LinearName& name) {
  const bool module = name.form == NameForm::kModule || name.form == NameForm::kExpertModule;
  return module ? name.path + ".weight" : name.path;
}

// Calls `each` with path and every part of it that follows a dot, until it returns true.
template <typename Each>
bool any_path_suffix(std::string_view path, Each each) {
  while (true) {
    if (each(std::string(path))) return true;
    const size_t dot = path.find('.');
    if (dot == std::string_view::npos) return false;
    path.remove_prefix(dot + 1);
  }
}

std::string with_expert(std::string path, int expert) {
  constexpr std::string_view kHole = "{expert}";
  if (const size_t hole = path.find(kHole); hole != std::string::npos) {
    path.replace(hole, kHole.size(), std::to_string(expert));
  }
  return path;
}

}  // namespace

unsigned row_bits(RowPart part) {
  return part == RowPart::kAll ? 3u : part == RowPart::kGate ? 1u : 2u;
}

Targets::Targets(const AdapterConfig& config, const LinearIndex& index)
    : config_(config),
      index_(index),
      parameters_(without_roots(config.target_parameters)),
      modules_(without_roots(config.target_modules.suffixes)),
      excluded_(without_roots(config.exclude_modules.suffixes)) {}

Targets::Suffixes Targets::without_roots(const std::vector<std::string>& names) const {
  Suffixes out;
  for (const std::string& name : names) out.insert(index_.without_root(name));
  return out;
}

bool Targets::parameter(const LinearName& name) const {
  return any_path_suffix(parameter_key(name),
                         [&](const std::string& s) { return parameters_.count(s) > 0; });
}

Status Targets::check_parameters(const Adapted& adapted) const {
  Suffixes known, found;
  for (const LinearSpec& spec : index_.table().linears) {
    for (const LinearName& name : spec.names) {
      any_path_suffix(parameter_key(name), [&](const std::string& suffix) {
        if (parameters_.count(suffix)) {
          known.insert(suffix);
          if (adapted.count(&spec)) found.insert(suffix);
        }
        return false;
      });
    }
  }
  for (const std::string& entry : config_.target_parameters) {
    const std::string bare = index_.without_root(entry);
    if (!known.count(bare)) {
      return invalid("target_parameters entry '{}' names no parameter of a {} model", entry,
                     index_.table().architecture);
    }
    if (!found.count(bare))
      return invalid("target_parameters entry '{}' has no tensors in the file", entry);
  }
  return {};
}

Result<bool> Targets::selected(const ModuleSelection& selection, const Suffixes& suffixes,
                               const std::string& path, const MatchBudget& budget) const {
  if (selection.form != ModuleSelection::Form::kPattern) {
    return any_path_suffix(path, [&](const std::string& s) { return suffixes.count(s) > 0; });
  }
  LK_ASSIGN_OR_RETURN(bool hit, selection.pattern->matches(path, budget));
  for (const std::string& prefix : index_.table().prefixes) {
    if (hit) return true;
    LK_ASSIGN_OR_RETURN(hit, selection.pattern->matches(prefix + path, budget));
  }
  return hit;
}

Result<bool> Targets::module(const LinearSpec& spec, const LinearName& name,
                             const MatchBudget& budget) const {
  using Form = ModuleSelection::Form;
  if (name.form != NameForm::kModule && name.form != NameForm::kExpertModule) return false;
  if (config_.target_modules.form == Form::kNone) return false;
  if (config_.target_modules.form == Form::kAllLinear) {
    return name.form == NameForm::kModule && spec.stage != Stage::kEmbedding &&
           spec.stage != Stage::kHead && spec.stage != Stage::kRouter;
  }
  const auto& layers = config_.layers_to_transform;
  if (!layers.empty() && std::find(layers.begin(), layers.end(), spec.layer) == layers.end())
    return false;
  const int experts = name.form == NameForm::kExpertModule ? spec.experts : 1;
  for (int e = 0; e < experts; ++e) {
    const std::string path = with_expert(name.path, e);
    LK_ASSIGN_OR_RETURN(const bool hit, selected(config_.target_modules, modules_, path, budget));
    if (!hit) continue;
    LK_ASSIGN_OR_RETURN(const bool out, selected(config_.exclude_modules, excluded_, path, budget));
    if (!out) return true;
  }
  return false;
}

Result<std::vector<std::string>> Targets::not_adapted(const Adapted& adapted,
                                                      const MatchBudget& budget) const {
  std::vector<std::string> out;
  for (const LinearSpec& spec : index_.table().linears) {
    const auto found = adapted.find(&spec);
    const unsigned rows = found == adapted.end() ? 0 : found->second;
    for (const LinearName& name : spec.names) {
      if ((rows & row_bits(name.part)) != 0) continue;
      bool hit = parameter(name);
      if (!hit) {
        LK_ASSIGN_OR_RETURN(hit, module(spec, name, budget));
      }
      if (!hit) continue;
      out.push_back(rows == 0 ? spec.path() : name.path);
      break;
    }
  }
  return out;
}

// Entries of a target_modules list that no module's path ends with.
std::vector<std::string> Targets::unknown_modules() const {
  Suffixes left = modules_;
  const auto strike = [&](std::string_view path) {
    return any_path_suffix(path, [&](const std::string& s) { return left.erase(s), left.empty(); });
  };
  // Entries that name an expert by its number are rare: one expert stands for all at first.
  for (const bool every_expert : {false, true}) {
    for (const LinearSpec& spec : index_.table().linears) {
      for (const LinearName& name : spec.names) {
        const bool apart = name.form == NameForm::kExpertModule;
        const int experts = apart && every_expert ? spec.experts : 1;
        for (int e = 0; e < experts; ++e) {
          if (left.empty() || strike(with_expert(name.path, e))) return {};
        }
      }
    }
  }
  std::vector<std::string> unknown;
  for (const std::string& entry : config_.target_modules.suffixes) {
    if (left.count(index_.without_root(entry))) unknown.push_back("'" + entry + "'");
  }
  return unknown;
}

std::vector<std::string> Targets::unknown_layers() const {
  int layers = 0;
  for (const LinearSpec& spec : index_.table().linears) layers = std::max(layers, spec.layer + 1);
  std::vector<std::string> unknown;
  for (const int64_t layer : config_.layers_to_transform) {
    if (layer < 0 || layer >= layers) unknown.push_back(std::to_string(layer));
  }
  return unknown;
}

Result<bool> Targets::targeted(const LinearSpec& spec, const MatchBudget& budget) const {
  for (const LinearName& name : spec.names) {
    if (parameter(name)) return true;
    LK_ASSIGN_OR_RETURN(const bool hit, module(spec, name, budget));
    if (hit) return true;
  }
  return false;
}

Result<std::vector<std::string>> Targets::contradictions(const Adapted& adapted,
                                                         const MatchBudget& budget) const {
  using Form = ModuleSelection::Form;
  std::vector<std::string> out;
  const std::string& architecture = index_.table().architecture;
  if (const auto unknown = unknown_modules(); !unknown.empty()) {
    out.push_back(fmt::format("target_modules names what no linear of a {} model is called: {}",
                              architecture, list_some(unknown)));
  }
  if (const auto unknown = unknown_layers(); !unknown.empty()) {
    out.push_back(fmt::format("layers_to_transform names layers that the model does not have: {}",
                              list_some(unknown)));
  }
  if (config_.target_modules.form == Form::kNone && config_.target_parameters.empty()) return out;
  std::vector<std::string> unasked;
  bool any = false;
  for (const LinearSpec& spec : index_.table().linears) {
    const bool pattern_may_be_idle = config_.target_modules.form == Form::kPattern && !any;
    if (!adapted.count(&spec) && !pattern_may_be_idle) continue;
    LK_ASSIGN_OR_RETURN(const bool hit, targeted(spec, budget));
    any = any || hit;
    if (!hit && adapted.count(&spec)) unasked.push_back(spec.path());
  }
  if (config_.target_modules.form == Form::kPattern && !any) {
    out.push_back(fmt::format("target_modules matches no linear of a {} model", architecture));
  }
  if (!unasked.empty()) {
    out.push_back(fmt::format(
        "the configuration (target_modules, target_parameters, exclude_modules, "
        "layers_to_transform) leaves out {} linears that the file has tensors for, which are "
        "applied: {}",
        unasked.size(), list_some(unasked)));
  }
  return out;
}

}  // namespace lk
