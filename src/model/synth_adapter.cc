#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "checkpoint/safetensors_writer.h"
#include "model/output_folder.h"
#include "model/synth.h"
#include "model/synth_writer.h"

namespace lk {
namespace {

constexpr double kShareAdded = 0.1;  // of what the linear gives

struct StageGroup {
  std::string_view name;
  std::vector<Stage> stages;
};

const std::vector<StageGroup>& stage_groups() {
  static const std::vector<StageGroup> groups = {
      {"attention", {Stage::kQuery, Stage::kKey, Stage::kValue, Stage::kAttentionOut}},
      {"recurrent",
       {Stage::kRecurrentIn, Stage::kRecurrentGate, Stage::kRecurrentDecay, Stage::kRecurrentBeta,
        Stage::kRecurrentOut}},
      {"experts", {Stage::kExpertUp, Stage::kExpertDown}},
      {"shared", {Stage::kSharedUp, Stage::kSharedDown, Stage::kSharedGate}},
      {"latent", {Stage::kLatentIn, Stage::kLatentOut}},
      {"router", {Stage::kRouter}},
      {"head", {Stage::kHead}},
      {"embedding", {Stage::kEmbedding}},
  };
  return groups;
}

// Whether `path` is `suffix` or ends with it as whole components.
bool ends_with_path(std::string_view path, std::string_view suffix) {
  return path == suffix || (path.ends_with(suffix) && path.size() > suffix.size() &&
                            path[path.size() - suffix.size() - 1] == '.');
}

bool is_target(const LinearSpec& spec, std::string_view target) {
  if (target == "all" || target == stage_name(spec.stage)) return true;
  for (const StageGroup& group : stage_groups()) {
    if (group.name == target) {
      return std::find(group.stages.begin(), group.stages.end(), spec.stage) != group.stages.end();
    }
  }
  return std::any_of(spec.names.begin(), spec.names.end(),
                     [&](const LinearName& name) { return ends_with_path(name.path, target); });
}

std::string leaf_of(std::string_view path) {
  return std::string(path.substr(path.rfind('.') + 1));  // npos + 1 is 0
}

Result<std::vector<const LinearSpec*>> find_targets(const LinearTable& table,
                                                    const std::vector<std::string>& targets) {
  for (const std::string& target : targets) {
    if (std::any_of(table.linears.begin(), table.linears.end(),
                    [&](const LinearSpec& spec) { return is_target(spec, target); })) {
      continue;
    }
    std::string known = "all";
    for (const StageGroup& group : stage_groups()) {
      if (std::any_of(table.linears.begin(), table.linears.end(),
                      [&](const LinearSpec& spec) { return is_target(spec, group.name); }))
        known += fmt::format(", {}", group.name);
    }
    std::set<std::string> leaves;
    for (const LinearSpec& spec : table.linears) leaves.insert(leaf_of(spec.path()));
    for (const std::string& leaf : leaves) known += ", " + leaf;
    return invalid("{} has no linear '{}'; targets are {}, or the end of a module's path",
                   table.architecture, target.substr(0, 60), known);
  }
  std::vector<const LinearSpec*> found;
  for (const LinearSpec& spec : table.linears) {
    if (std::any_of(targets.begin(), targets.end(),
                    [&](const std::string& target) { return is_target(spec, target); })) {
      found.push_back(&spec);
    }
  }
  return found;
}

class AdapterPlan {
 public:
  AdapterPlan(const LinearTable& table, const SynthAdapterOptions& options,
              const std::vector<const LinearSpec*>& specs)
      : table_(table), options_(options), specs_(specs.begin(), specs.end()) {
    for (const LinearSpec* spec : specs) {
      if (const LinearName* name = parameter_of(*spec)) ++wrappers_[parent_of(name->path)];
    }
    for (const LinearSpec* spec : specs) add(*spec);
  }

  std::vector<SynthTensor> tensors;
  std::set<std::string> modules, parameters;

 private:
  // The fused form of an expert linear; null if it has none.
  static const LinearName* parameter_of(const LinearSpec& spec) {
    for (const LinearName& name : spec.names) {
      if (name.form == NameForm::kParameterInOut || name.form == NameForm::kParameterOutIn) {
        return &name;
      }
    }
    return nullptr;
  }
  static std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('.')); }

  void add(const LinearSpec& spec) {
    if (const LinearName* name = parameter_of(spec)) return add_parameter(spec, *name);
    for (const LinearName& name : spec.names) {
      if (&name != &spec.names.front() && name.part != RowPart::kUp) break;
      for (int e = 0; e < std::max(spec.experts, 1); ++e) {
        constexpr std::string_view kHole = "{expert}";
        std::string path = name.path;
        if (const size_t at = path.find(kHole); at != path.npos)
          path.replace(at, kHole.size(), std::to_string(e));
        add_module(spec, path, name.part == RowPart::kAll ? spec.out : spec.out / 2);
      }
    }
  }

  // PEFT nests the wrappers of a module's parameters; the first registered is the innermost.
  void add_parameter(const LinearSpec& spec, const LinearName& name) {
    std::string path = parent_of(name.path);
    for (int outer = --wrappers_[path], i = 0; i < outer; ++i) path += ".base_layer";
    parameters.insert(target_name(name.path, 3));
    add_pair(path, "lora_A.weight", {int64_t{options_.rank} * spec.experts, spec.in},
             "lora_B.weight", {spec.out, int64_t{options_.rank} * spec.experts}, spec.in);
  }

  void add_module(const LinearSpec& spec, const std::string& path, int64_t out) {
    if (spec.stage == Stage::kEmbedding) {
      modules.insert(target_name(path, 1));
      // The input is one row of A, not a sum over them.
      return add_pair(path, "lora_embedding_A", {options_.rank, out}, "lora_embedding_B",
                      {spec.in, options_.rank}, 1);
    }
    // Routers are parameters of their module, whose one matrix PEFT wraps like a module's own.
    if (spec.stage == Stage::kRouter) {
      parameters.insert(target_name(path, 2) + ".weight");
    } else {
      modules.insert(target_name(path, 1));
    }
    add_pair(path, "lora_A.weight", {options_.rank, spec.in}, "lora_B.weight", {out, options_.rank},
             spec.in);
  }

  void add_pair(const std::string& path, std::string_view a_name, Shape a, std::string_view b_name,
                Shape b, int64_t summed) {
    const std::string full =
        "base_model.model." + table_.full_name(path, table_.prefixes.front()) + ".";
    const double scale = options_.alpha / options_.rank;
    tensors.push_back({full + std::string(a_name), DType::kBF16, std::move(a),
                       1.0f / std::sqrt(static_cast<float>(summed))});
    tensors.push_back({full + std::string(b_name), DType::kBF16, std::move(b),
                       static_cast<float>(kShareAdded / (scale * std::sqrt(options_.rank)))});
  }

  // The last `components` of a path, if all linears that end so are adapted; else the whole path.
  std::string target_name(const std::string& path, int components) const {
    size_t at = path.size();
    for (int i = 0; i < components && at != path.npos && at > 0; ++i) at = path.rfind('.', at - 1);
    const std::string suffix = at == path.npos ? path : path.substr(at + 1);
    for (const LinearSpec& spec : table_.linears) {
      if (specs_.count(&spec) > 0) continue;
      for (const LinearName& name : spec.names) {
        if (ends_with_path(name.path, suffix)) return path;
      }
    }
    return suffix;
  }

  const LinearTable& table_;
  const SynthAdapterOptions& options_;
  const std::set<const LinearSpec*> specs_;
  std::map<std::string, int> wrappers_;  // of a module, those that are not placed yet
};

}  // namespace

Result<bool> synthesize_adapter(const std::string& folder, const LinearTable& table,
                                const SynthAdapterOptions& options) {
  if (options.rank < 1)
    return invalid("an adapter's rank must be at least 1, not {}", options.rank);
  if (!std::isfinite(options.alpha) || options.alpha <= 0)
    return invalid("an adapter's alpha must be a positive number, not {}", options.alpha);
  LK_ASSIGN_OR_RETURN(const auto specs, find_targets(table, options.targets));
  if (specs.empty()) return invalid("no targets are named that an adapter could adapt");
  const AdapterPlan plan(table, options, specs);
  std::vector<std::string> sources;
  if (!options.model.empty()) sources.push_back(options.model);
  LK_ASSIGN_OR_RETURN(OutputFolder output, OutputFolder::make(folder, sources));
  LK_ASSIGN_OR_RETURN(const bool whole,
                      write_random_safetensors(folder, "adapter_model", plan.tensors, options.seed,
                                               UINT64_MAX, options.progress));
  if (!whole) return false;
  const OrderedJson config = {{"peft_type", "LORA"},
                              {"peft_version", "0.21.0"},
                              {"task_type", "CAUSAL_LM"},
                              {"base_model_name_or_path", nullptr},
                              {"r", options.rank},
                              {"lora_alpha", options.alpha},
                              {"use_rslora", false},
                              {"bias", "none"},
                              {"target_modules", plan.modules},
                              {"target_parameters", plan.parameters},
                              {"rank_pattern", OrderedJson::object()},
                              {"alpha_pattern", OrderedJson::object()}};
  // Last, so that a folder with a config is a whole one.
  LK_RETURN_IF_ERROR(write_text_file(folder + "/adapter_config.json", config.dump(1) + "\n"));
  output.keep();
  return true;
}

}  // namespace lk
