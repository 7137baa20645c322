// Which linears of a table an adapter's configuration targets. The tensors of the file decide what
// is adapted; this says which fused parameter a name without its own stands for, and what was asked
// for but is not there.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "adapters/adapter_config.h"
#include "adapters/tensor_names.h"
#include "base/result.h"

namespace lk {

class Targets {
 public:
  // Keeps references to both.
  Targets(const AdapterConfig& config, const LinearIndex& index);

  // target_parameters names this parameter (for a module: its weight).
  bool parameter(const LinearName& name) const;

  using Adapted = std::unordered_set<const LinearSpec*>;
  // Errors: kInvalid if an entry of target_parameters names nothing in the table, or nothing that
  // is adapted.
  Status check_parameters(const Adapted& adapted) const;
  // Paths of the linears that target_modules or target_parameters match and that are not in
  // `adapted`, in table order.
  Result<std::vector<std::string>> not_adapted(const Adapted& adapted,
                                               const MatchBudget& budget) const;

 private:
  using Suffixes =
      std::unordered_set<std::string>;  // without root prefixes, as the table's names are

  Suffixes without_roots(const std::vector<std::string>& names) const;
  Result<bool> module(const LinearSpec& spec, const LinearName& name,
                      const MatchBudget& budget) const;
  Result<bool> selected(const ModuleSelection& selection, const Suffixes& suffixes,
                        const std::string& path, const MatchBudget& budget) const;

  const AdapterConfig& config_;
  const LinearIndex& index_;
  Suffixes parameters_, modules_, excluded_;
};

}  // namespace lk
