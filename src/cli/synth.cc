#include "cli/synth.h"

#include <fmt/core.h>

#include "checkpoint/checkpoint.h"
#include "cli/output.h"
#include "model/archs.h"
#include "model/synth.h"

namespace lk {
namespace {

Status run_synth(const SynthCommandOptions& options, StatusLine& line) {
  SynthOptions synth;
  synth.preset = options.preset;
  synth.layers = options.layers;
  synth.seed = options.seed;
  synth.progress = [&](uint64_t done, uint64_t total) {
    if (!line.due()) return;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    line.show(fmt::format("{} {:.1f} of {:.1f} GB", progress_bar(share),
                          static_cast<double>(done) * 1e-9, static_cast<double>(total) * 1e-9));
  };
  LK_RETURN_IF_ERROR(synthesize_checkpoint(options.folder, synth));
  LK_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.folder));
  LK_ASSIGN_OR_RETURN(const ArchRow* row, find_arch(checkpoint.config().model_type()));
  LK_ASSIGN_OR_RETURN(const LinearTable table, row->table(checkpoint.config()));
  for (int i = 0; i < options.adapters; ++i) {
    SynthAdapterOptions adapter;
    adapter.rank = options.rank;
    adapter.alpha = 2.0 * options.rank;
    adapter.seed = options.seed + 1 + static_cast<uint64_t>(i);
    LK_RETURN_IF_ERROR(
        synthesize_adapter(fmt::format("{}/adapter{}", options.folder, i), table, adapter));
  }
  return {};
}

}  // namespace

int synth_command(const SynthCommandOptions& options) {
  StatusLine line;
  const Status status = run_synth(options, line);
  line.clear();
  if (status) return kExitGood;
  print_error(status.error().message);
  return status.error().kind == ErrorKind::kInternal ? kExitFailed : kExitUsage;
}

}  // namespace lk
