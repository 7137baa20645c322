#include "model/moe_plan.h"

#include <fmt/format.h>

#include "base/check.h"

namespace lk {
namespace {

bool same_needs(const MoeNeeds& a, const MoeNeeds& b) {
  return a.up == b.up && a.down == b.down && a.activation == b.activation && a.gated == b.gated &&
         a.bias == b.bias && a.hidden == b.hidden && a.intermediate == b.intermediate;
}

const StoredLinear& stored_linear(const StoredModel& stored, const LinearTable& table, Stage stage,
                                  int layer) {
  const LinearSpec* spec = table.find(stage, layer);
  LK_CHECK(spec != nullptr);
  return stored.linears[spec - table.linears.data()];
}

std::string layers_of(const MoeGroup& group) {
  return group.first_layer == group.last_layer
             ? fmt::format("layer {}", group.first_layer)
             : fmt::format("layers {}-{}", group.first_layer, group.last_layer);
}

std::string formats_of(const MoeNeeds& needs) {
  return needs.up == needs.down ? std::string(needs.up->name)
                                : fmt::format("{} and {}", needs.up->name, needs.down->name);
}

}  // namespace

Result<std::vector<MoeGroup>> plan_moe(const StoredModel& stored, const LinearTable& table,
                                       const DecoderSpec& spec, std::string_view kernels,
                                       const MoeOptions& options) {
  std::vector<MoeGroup> groups;
  for (int layer = 0; layer < static_cast<int>(spec.layers.size()); ++layer) {
    if (!spec.layers[layer].moe) continue;
    const MoeSpec& moe = *spec.layers[layer].moe;
    const StoredLinear& up = stored_linear(stored, table, Stage::kExpertUp, layer);
    const StoredLinear& down = stored_linear(stored, table, Stage::kExpertDown, layer);
    const MoeNeeds needs = {.kernels = kernels,
                            .up = up.format,
                            .down = down.format,
                            .activation = moe.activation,
                            .gated = up.spec->row_order != RowOrder::kPlain,
                            .bias = up.spec->bias || down.spec->bias,
                            .hidden = moe.latent > 0 ? moe.latent : spec.hidden,
                            .intermediate = moe.intermediate,
                            .lora = options.lora,
                            .max_rank = options.max_rank,
                            .activations = options.activations};
    if (!groups.empty() && same_needs(groups.back().needs, needs)) {
      groups.back().last_layer = layer;
      continue;
    }
    groups.push_back({.first_layer = layer, .last_layer = layer, .needs = needs, .choice = {}});
  }
  for (MoeGroup& group : groups) {
    auto choice = choose_moe_backend(group.needs, options.backend);
    if (!choice) {
      // A name that does not exist is nobody's layer's fault.
      if (choice.error().kind == ErrorKind::kInvalid) return tl::unexpected<Error>(choice.error());
      return unsupported("{} ({} experts): {}", layers_of(group), formats_of(group.needs),
                         choice.error().message);
    }
    group.choice = *std::move(choice);
  }
  return groups;
}

ProductForm product_form(const std::vector<MoeGroup>& groups, const LinearSpec& linear) {
  if (linear.stage != Stage::kExpertUp && linear.stage != Stage::kExpertDown) return {};
  for (const MoeGroup& group : groups) {
    if (linear.layer >= group.first_layer && linear.layer <= group.last_layer)
      return group.choice.backend->form;
  }
  return {};  // of a layer that a description leaves without experts
}

std::string describe(const MoeGroup& group) {
  std::string line = fmt::format("{}: {} experts on {}", layers_of(group), formats_of(group.needs),
                                 group.choice.backend->name);
  for (const MoeVerdict& verdict : group.choice.verdicts) {
    if (verdict.backend == group.choice.backend) continue;
    if (verdict.backend->cost >= group.choice.backend->cost) continue;
    if (!same_device(*verdict.backend, group.needs.kernels)) continue;
    line += fmt::format("; not {}: {}", verdict.backend->name, verdict.reason);
  }
  return line;
}

}  // namespace lk
