#include "cli/run.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cli/hub_models.h"

namespace lk {
namespace {

constexpr size_t kLongestPrompt = size_t{64} << 20;

Result<std::string> prompt_from_stdin() {
  std::string text;
  char piece[1 << 14];
  for (ssize_t n; (n = ::read(STDIN_FILENO, piece, sizeof piece)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return invalid("cannot read the prompt from stdin: {}", std::strerror(errno));
    text.append(piece, static_cast<size_t>(n));
    if (text.size() > kLongestPrompt)
      return invalid("the prompt on stdin is longer than {} bytes", kLongestPrompt);
  }
  if (text.empty()) {
    return invalid(
        "there is no prompt: give --prompt, --chat or --input, or a prompt on stdin (see lorikeet "
        "run --help)");
  }
  return text;
}

// What can be said before the model is loaded.
Status check_options(const RunOptions& options) {
  if (options.input && options.adapters.size() > 1) {
    return invalid("--adapter can be given once with --input; name others in the lines");
  }
  if (!options.json && (options.logprobs || options.prompt_logprobs)) {
    return invalid("--logprobs and --prompt-logprobs are printed with --json only");
  }
  if (!options.prompt && !options.chat && !options.input && isatty(STDIN_FILENO) == 1) {
    return invalid(
        "give --prompt, --chat or --input, or a prompt on stdin (see lorikeet run --help)");
  }
  if (options.max_num_batched_tokens && *options.max_num_batched_tokens < options.max_num_seqs) {
    return invalid("--max-num-batched-tokens must be at least --max-num-seqs ({}), not {}",
                   options.max_num_seqs, *options.max_num_batched_tokens);
  }
  LK_ASSIGN_OR_RETURN(const std::vector<LoraFlag> lora, parse_lora_flags(options.model.lora));
  for (const std::string& name : options.adapters) {
    const auto named = [&name](const LoraFlag& flag) { return flag.name == name; };
    if (name != "base" && std::none_of(lora.begin(), lora.end(), named)) {
      return fail(ErrorKind::kNotFound, "--adapter {}: no --lora has that name", name);
    }
  }
  return {};
}

Result<int> answer(RunOptions options, Output& output) {
  LK_RETURN_IF_ERROR(check_options(options));
  if (options.input && *options.input != "-" && access(options.input->c_str(), R_OK) != 0) {
    return fail(ErrorKind::kNotFound, "cannot open the input file {}", *options.input);
  }
  LK_ASSIGN_OR_RETURN(options.model, find_model_and_adapters(options.model));
  if (!options.prompt && !options.chat && !options.input) {
    LK_ASSIGN_OR_RETURN(options.prompt, prompt_from_stdin());
  }
  LK_ASSIGN_OR_RETURN(const HfConfig config, HfConfig::read(options.model.model));
  LK_ASSIGN_OR_RETURN(const RequestDefaults defaults, request_defaults(options, config));
  LK_ASSIGN_OR_RETURN(const auto session, Session::load(options));
  watch_interrupts();
  return options.input ? run_lines(options, *session, defaults, output)
                       : run_prompt(options, *session, defaults, output);
}

}  // namespace

int run_command(const RunOptions& options) {
  Output output;
  const Result<int> code = answer(options, output);
  if (!code) {
    print_error(code.error().message);
    return interrupted() ? kExitInterrupted : kExitUsage;
  }
  if (interrupted()) return kExitInterrupted;
  return output.closed() ? kExitFailed : *code;
}

}  // namespace lk
