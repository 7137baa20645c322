#include "cli/synth.h"

#include <fmt/core.h>

#include "base/bytes.h"
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

SynthProgress show_on(StatusLine& line) {
  return [&line](uint64_t done, uint64_t total) {
    if (line.due()) {
      const double share = static_cast<double>(done) / static_cast<double>(total);
      line.show(
          fmt::format("{} {} of {}", progress_bar(share), format_bytes(done), format_bytes(total)));
    }
    return !interrupted();
  };
}

Result<bool> run_synth(const SynthCommandOptions& options, StatusLine& line) {
  SynthOptions synth;
  synth.preset = options.preset;
  synth.layers = options.layers;
  synth.seed = options.seed;
  synth.router_skew = options.router_skew;
  synth.adapters = options.adapters;
  synth.adapter_rank = options.rank;
  synth.progress = show_on(line);
  return synthesize_checkpoint(options.folder, synth);
}

Result<bool> run_synth_lora(const SynthLoraOptions& options, StatusLine& line) {
  LK_ASSIGN_OR_RETURN(const std::string folder, find_model(options.model, options.revision));
  LK_ASSIGN_OR_RETURN(const LinearTable table, table_of(folder));
  SynthAdapterOptions adapter;
  adapter.rank = options.rank;
  adapter.alpha = options.alpha > 0 ? options.alpha : 2.0 * options.rank;
  adapter.targets = options.targets;
  adapter.seed = options.seed;
  adapter.model = folder;
  adapter.progress = show_on(line);
  watch_interrupts();
  return synthesize_adapter(options.folder, table, adapter);
}

int exit_code(const Result<bool>& whole, const std::string& folder) {
  if (!whole) {
    print_error(whole.error().message);
    if (interrupted()) return kExitInterrupted;
    return whole.error().kind == ErrorKind::kInternal ? kExitFailed : kExitUsage;
  }
  if (*whole) return kExitGood;
  print_error(fmt::format("interrupted: {} was not written", folder));
  return kExitInterrupted;
}

}  // namespace

int synth_command(const SynthCommandOptions& options) {
  StatusLine line;
  watch_interrupts();
  const Result<bool> whole = run_synth(options, line);
  line.clear();
  return exit_code(whole, options.folder);
}

int synth_lora_command(const SynthLoraOptions& options) {
  StatusLine line;
  const Result<bool> whole = run_synth_lora(options, line);
  line.clear();
  return exit_code(whole, options.folder);
}

}  // namespace lk
