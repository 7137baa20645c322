#include "cli/quantize.h"

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "base/mmap_file.h"
#include "cli/hub_models.h"
#include "cli/output.h"
#include "cli/perplexity.h"
#include "model/quantize.h"

namespace lk {
namespace {

// One line a linear that changed.
std::string table_of(const QuantizeReport& report) {
  size_t width = 0;
  for (const QuantizedLinear& linear : report.linears) width = std::max(width, linear.name.size());
  std::string text;
  for (const QuantizedLinear& linear : report.linears) {
    if (linear.from == linear.to) continue;
    text += fmt::format("{:<{}}  {} -> {}  relative error {:.3e}\n", linear.name, width,
                        linear.from, linear.to, linear.error);
  }
  return text;
}

Result<int> quantize(const QuantizeCommandOptions& options, StatusLine& line, Output& output) {
  QuantizeOptions work;
  LK_ASSIGN_OR_RETURN(work.target, find_target(options.format, options.recipe));
  LK_ASSIGN_OR_RETURN(const std::string in, find_model(options.in, options.revision));
  work.keep = options.keep;
  work.threads = options.threads;
  work.measure = options.report.has_value();
  if (options.shard_bytes > 0) work.shard_bytes = options.shard_bytes;
  watch_interrupts();
  std::string text;
  std::optional<Perplexity> before;
  if (work.measure && !options.report->empty()) {
    LK_ASSIGN_OR_RETURN(text, read_file(*options.report));
    LK_ASSIGN_OR_RETURN(before, measure_perplexity(in, text, options.threads));
  }
  work.progress = [&](uint64_t done, uint64_t total) {
    if (line.due()) {
      const double share = static_cast<double>(done) / static_cast<double>(total);
      line.show(
          fmt::format("{} {} of {}", progress_bar(share), format_bytes(done), format_bytes(total)));
    }
    return !interrupted();
  };
  LK_ASSIGN_OR_RETURN(const QuantizeReport report, quantize_checkpoint(in, options.out, work));
  line.clear();
  if (report.stopped) {
    print_error(fmt::format("interrupted: {} was not written", options.out));
    return kExitInterrupted;
  }
  for (const std::string& warning : report.warnings) print_warning(warning);
  if (work.measure) output.write(table_of(report));
  if (before) {
    LK_ASSIGN_OR_RETURN(const Perplexity after,
                        measure_perplexity(options.out, text, options.threads));
    output.write(fmt::format("perplexity over {} tokens: {:.4f} before, {:.4f} after\n",
                             after.tokens, before->value, after.value));
  }
  output.write(fmt::format("{}: {}, {} layout, {}\n", options.out, work.target->format,
                           work.target->recipe, format_bytes(report.bytes)));
  return output.closed() ? kExitFailed : kExitGood;
}

}  // namespace

int quantize_command(const QuantizeCommandOptions& options) {
  StatusLine line;
  Output output;
  const Result<int> code = quantize(options, line, output);
  line.clear();
  if (code) return *code;
  print_error(code.error().message);
  if (interrupted()) return kExitInterrupted;
  return code.error().kind == ErrorKind::kInternal ? kExitFailed : kExitUsage;
}

}  // namespace lk
