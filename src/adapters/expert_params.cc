#include "adapters/expert_params.h"

#include <algorithm>
#include <optional>

namespace lk {
namespace {

int64_t expert_count(const LinearSpec& spec) { return std::max(spec.experts, 1); }

ParameterPair fit(const TensorGroup& group, const LinearPlace& place) {
  ParameterPair pair{&group, place};
  const TensorView& a = group.raw.a;
  const TensorView& b = group.raw.b;
  if (a.shape[0] != b.shape[1] || a.shape[0] % expert_count(*place.spec) != 0) return pair;
  pair.standard = a.shape[1] == place.spec->in && b.shape[0] == place.rows();
  pair.swapped = a.shape[1] == place.rows() && b.shape[0] == place.spec->in;
  return pair;
}

bool fits(const ParameterPair& pair) { return pair.standard || pair.swapped; }

tl::unexpected<Error> misfit(const TensorGroup& group, const LinearPlace& place) {
  const LinearSpec& spec = *place.spec;
  const int64_t experts = expert_count(spec);
  const Shape& a = group.raw.a.shape;
  const Shape& b = group.raw.b.shape;
  if (a[0] != b[1] && a[0] * experts == b[1]) {
    return unsupported(
        "tensor {} has shape {} beside {} {}: one lora_A shared by all {} experts is not supported",
        group.raw.a_name, shape_string(a), group.raw.b_name, shape_string(b), experts);
  }
  return invalid(
      "tensors {} {} and {} {} do not fit {}: expected [{}*r, {}] and [{}, {}*r] for {} experts",
      group.raw.a_name, shape_string(a), group.raw.b_name, shape_string(b), place.name->path,
      experts, spec.in, place.rows(), experts, experts);
}

// The parameter that the nesting depth names: wrapper 0 is the outermost, which is the last one
// registered.
const LinearPlace* by_depth(const std::vector<LinearPlace>& targeted, int depth) {
  const auto n = static_cast<int>(targeted.size());
  return depth < n ? &targeted[static_cast<size_t>(n - 1 - depth)] : nullptr;
}

// All ways to give each group its own parameter so that every shape fits.
void search(const std::vector<const TensorGroup*>& groups,
            const std::vector<LinearPlace>& parameters, std::vector<bool>& used,
            std::vector<ParameterPair>& chosen, std::vector<std::vector<ParameterPair>>& found) {
  if (chosen.size() == groups.size()) {
    found.push_back(chosen);
    return;
  }
  for (size_t i = 0; i < parameters.size() && found.size() < 2; ++i) {
    if (used[i]) continue;
    const ParameterPair pair = fit(*groups[chosen.size()], parameters[i]);
    if (!fits(pair)) continue;
    used[i] = true;
    chosen.push_back(pair);
    search(groups, parameters, used, chosen, found);
    chosen.pop_back();
    used[i] = false;
  }
}

std::string named(const LinearPlace& place) { return std::string(leaf(place.name->path)); }

// Which orientation PEFT gave a 3-D parameter, by version. Parameters (E, out, in) were taken for
// (E, in, out) up to 0.19.0; for (E, in, out) only 0.19.0 swapped. The main branch between 0.18.0
// and 0.19.0 called itself 0.18.1.dev0.
std::optional<bool> swapped_by_version(NameForm form, const PeftVersion& version) {
  if (form == NameForm::kParameterOutIn) return !version.at_least(0, 19, 1);
  if (version.dev && version.at_least(0, 18, 1) && !version.at_least(0, 19, 1)) return std::nullopt;
  return version.major == 0 && version.minor == 19 && version.patch == 0;
}

}  // namespace

Result<std::vector<ParameterPair>> assign_parameters(const std::vector<const TensorGroup*>& groups,
                                                     const std::vector<LinearPlace>& parameters,
                                                     const Targets& targets,
                                                     std::vector<std::string>& warnings) {
  std::vector<LinearPlace> targeted;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(targeted),
               [&](const LinearPlace& place) { return targets.parameter(*place.name); });
  const bool told = !targeted.empty();
  if (!told) targeted = parameters;
  if (groups.size() > parameters.size()) {
    return invalid("tensor {}: the module has {} expert parameters, but the file nests {} pairs",
                   groups.back()->raw.a_name, parameters.size(), groups.size());
  }

  std::vector<ParameterPair> by_name;
  for (const TensorGroup* group : groups) {
    const LinearPlace* place = by_depth(targeted, group->name.depth);
    if (place) by_name.push_back(fit(*group, *place));
  }
  const bool named_fit =
      by_name.size() == groups.size() && std::all_of(by_name.begin(), by_name.end(), fits);
  // Without target_parameters a full set of wrappers still says what is what.
  if (named_fit && (told || groups.size() == parameters.size())) return by_name;

  std::vector<bool> used(parameters.size());
  std::vector<ParameterPair> chosen;
  std::vector<std::vector<ParameterPair>> found;
  search(groups, parameters, used, chosen, found);
  if (found.empty()) {
    for (const TensorGroup* group : groups) {
      const LinearPlace* place = by_depth(targeted, group->name.depth);
      if (!place) place = &parameters.front();
      if (!fits(fit(*group, *place))) return misfit(*group, *place);
    }
    return misfit(*groups.front(), parameters.front());
  }
  if (found.size() > 1) {
    return invalid(
        "tensor {} may belong to {} or {}: target_parameters does not say and the shapes fit both",
        groups.front()->raw.a_name, named(found[0].front().place), named(found[1].front().place));
  }
  if (told) {
    warnings.push_back(
        fmt::format("{} is taken for {} by its shape, against the nesting order that PEFT writes",
                    groups.front()->raw.a_name, named(found[0].front().place)));
  }
  return found[0];
}

Status decide_orientation(std::vector<ParameterPair>& pairs, const AdapterConfig& config,
                          ExpertOrientation option, std::vector<std::string>& warnings) {
  bool any_standard = false, any_swapped = false;
  const ParameterPair* open = nullptr;
  for (const ParameterPair& pair : pairs) {
    if (pair.standard && pair.swapped) {
      if (!open) open = &pair;
      continue;
    }
    (pair.standard ? any_standard : any_swapped) = true;
  }
  const bool siblings = any_standard != any_swapped;
  if (!open) return {};

  std::string source;
  for (ParameterPair& pair : pairs) {
    if (!pair.standard || !pair.swapped) continue;
    std::optional<bool> swapped;
    if (siblings) {
      swapped = any_swapped;
      source = "the other expert parameters of the file";
    } else if (config.peft_version) {
      swapped = swapped_by_version(pair.place.name->form, *config.peft_version);
      source = fmt::format("peft_version {}", config.peft_version->text());
    }
    if (!swapped && option != ExpertOrientation::kAuto) {
      swapped = option == ExpertOrientation::kSwapped;
      source = "the operator's option";
    }
    if (!swapped) {
      return invalid(
          "tensor {} {} fits {} in both orientations, and neither another parameter of the file "
          "nor "
          "peft_version{} tells which side lora_A is on; say it with --lora-expert-orientation",
          pair.group->raw.a_name, shape_string(pair.group->raw.a.shape), pair.place.name->path,
          config.peft_version ? fmt::format(" {}", config.peft_version->text()) : std::string());
    }
    pair.standard = !*swapped;
    pair.swapped = *swapped;
  }
  if (!siblings) {
    warnings.push_back(fmt::format(
        "square expert matrices are read in {} orientation, according to {} (first: {})",
        open->swapped ? "swapped" : "standard", source, open->group->raw.a_name));
  }
  return {};
}

}  // namespace lk
