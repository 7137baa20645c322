// Which linears of a table an adapter's configuration targets. The tensors of the file decide what
// is adapted; this says which fused parameter a name without its own stands for, and what was asked
// for but is not there.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "adapters/adapter_config.h"
#include "adapters/tensor_names.h"
#include "base/result.h"

namespace lk {

// Gate rows 1, up rows 2.
unsigned row_bits(RowPart part);

class Targets {
 public:
  // Keeps references to both.
  Targets(const AdapterConfig& config, const LinearIndex& index);

  // target_parameters names this parameter (for a module: its weight).
  bool parameter(const LinearName& name) const;

  // Rows of each linear that the file has pairs for, in any expert: bits of row_bits().
  using Adapted = std::unordered_map<const LinearSpec*, unsigned>;
  // Errors: kInvalid if an entry of target_parameters names nothing in the table, or nothing that
  // is adapted.
  Status check_parameters(const Adapted& adapted) const;
  // Linears (or, where a half is adapted, names of the other) that target_modules or
  // target_parameters match and `adapted` lacks, in table order.
  Result<std::vector<std::string>> not_adapted(const Adapted& adapted,
                                               const MatchBudget& budget) const;
  // Where the configuration and the file contradict each other, a sentence each. The tensors
  // decide; what the configuration says besides is told, not followed: modules that do not exist,
  // layers that do not exist, linears that are adapted although nothing asks for it.
  Result<std::vector<std::string>> contradictions(const Adapted& adapted,
                                                  const MatchBudget& budget) const;

 private:
  using Suffixes =
      std::unordered_set<std::string>;  // without root prefixes, as the table's names are

  std::vector<std::string> unknown_modules() const;
  std::vector<std::string> unknown_layers() const;
  Result<bool> targeted(const LinearSpec& spec, const MatchBudget& budget) const;
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
