#include "cli/synth.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/hf_config.h"
#include "cli/hub_models.h"
#include "cli/output.h"
#include "model/archs.h"
#include "model/synth.h"

namespace lk {
namespace {

Result<LinearTable> table_of(const std::string& folder) {
  LK_ASSIGN_OR_RETURN(const HfConfig config, HfConfig::read(folder));
  LK_ASSIGN_OR_RETURN(const ArchRow* row, find_arch(config.model_type()));
  return row->table(config);
}

// What the adapters of `synth --adapters` are for: experts, and attention; of a model whose kept
// layers have none of it, the recurrent mixers.
std::vector<std::string> adapter_targets(const LinearTable& table) {
  const auto has = [&](Stage stage) {
    return std::any_of(table.linears.begin(), table.linears.end(),
                       [stage](const LinearSpec& spec) { return spec.stage == stage; });
  };
  std::vector<std::string> targets;
  if (has(Stage::kQuery))
    targets.emplace_back("attention");
  else if (has(Stage::kRecurrentIn))
    targets.emplace_back("recurrent");
  if (has(Stage::kExpertUp)) targets.emplace_back("experts");
  return targets;
}

Status run_synth(const SynthCommandOptions& options, StatusLine& line) {
  SynthOptions synth;
  synth.preset = options.preset;
  synth.layers = options.layers;
  synth.seed = options.seed;
  synth.router_skew = options.router_skew;
  synth.progress = [&](uint64_t done, uint64_t total) {
    if (!line.due()) return;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    line.show(fmt::format("{} {:.1f} of {:.1f} GB", progress_bar(share),
                          static_cast<double>(done) * 1e-9, static_cast<double>(total) * 1e-9));
  };
  LK_RETURN_IF_ERROR(synthesize_checkpoint(options.folder, synth));
  LK_ASSIGN_OR_RETURN(const LinearTable table, table_of(options.folder));
  for (int i = 0; i < options.adapters; ++i) {
    SynthAdapterOptions adapter;
    adapter.rank = options.rank;
    adapter.alpha = 2.0 * options.rank;
    adapter.targets = adapter_targets(table);
    adapter.seed = options.seed + 1 + static_cast<uint64_t>(i);
    LK_RETURN_IF_ERROR(
        synthesize_adapter(fmt::format("{}/adapter{}", options.folder, i), table, adapter));
  }
  return {};
}

Status run_synth_lora(const SynthLoraOptions& options) {
  LK_ASSIGN_OR_RETURN(const std::string folder, find_model(options.model, options.revision));
  LK_ASSIGN_OR_RETURN(const LinearTable table, table_of(folder));
  SynthAdapterOptions adapter;
  adapter.rank = options.rank;
  adapter.alpha = options.alpha > 0 ? options.alpha : 2.0 * options.rank;
  adapter.targets = options.targets;
  adapter.seed = options.seed;
  return synthesize_adapter(options.folder, table, adapter);
}

int exit_code(const Status& status) {
  if (status) return kExitGood;
  print_error(status.error().message);
  if (interrupted()) return kExitInterrupted;
  return status.error().kind == ErrorKind::kInternal ? kExitFailed : kExitUsage;
}

}  // namespace

int synth_command(const SynthCommandOptions& options) {
  StatusLine line;
  const Status status = run_synth(options, line);
  line.clear();
  return exit_code(status);
}

int synth_lora_command(const SynthLoraOptions& options) {
  return exit_code(run_synth_lora(options));
}

}  // namespace lk
