#include "cli/app.h"

#include <exception>
#include <new>
#include <system_error>

#include "cli/flags.h"
#include "cli/inspect.h"
#include "cli/output.h"
#include "cli/pull.h"
#include "cli/quantize.h"
#include "cli/run.h"
#include "cli/serve.h"
#include "cli/synth.h"

namespace lk {
namespace {

int dispatch(int argc, const char* const* argv) {
  const auto parsed = parse_flags(argc, argv);
  if (const auto* run = std::get_if<RunOptions>(&parsed)) return run_command(*run);
  if (const auto* serve = std::get_if<ServeOptions>(&parsed)) return serve_command(*serve);
  if (const auto* inspect = std::get_if<InspectOptions>(&parsed)) return inspect_command(*inspect);
  if (const auto* synth = std::get_if<SynthCommandOptions>(&parsed)) return synth_command(*synth);
  if (const auto* lora = std::get_if<SynthLoraOptions>(&parsed)) return synth_lora_command(*lora);
  if (const auto* quantize = std::get_if<QuantizeCommandOptions>(&parsed))
    return quantize_command(*quantize);
  if (const auto* pull = std::get_if<PullOptions>(&parsed)) return pull_command(*pull);
  const auto& usage = std::get<UsageText>(parsed);
  if (usage.exit_code == kExitGood) {
    Output output;
    output.write(usage.text);
    if (output.closed()) return kExitFailed;
  } else {
    write_to_stderr(usage.text);
  }
  return usage.exit_code;
}

}  // namespace

int run_app(int argc, const char* const* argv) {
  try {
    if (const Status good = check_standard_streams(); !good) {
      print_error(good.error().message);
      return kExitUsage;
    }
    return dispatch(argc, argv);
  } catch (const std::bad_alloc&) {
    print_error(
        "memory ran out while requests were read or answered; lower --max-num-seqs, "
        "--max-num-batched-tokens or --max-model-len");
    return kExitUsage;
  } catch (const std::system_error& error) {  // no thread to be had
    print_error(error.what());
    return kExitUsage;
  } catch (const std::exception& error) {
    print_error(error.what());
    return kExitFailed;
  }
}

}  // namespace lk
