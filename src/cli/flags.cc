#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/number_flags.h"
#include "cli/quantize_flags.h"
#include "cli/serve_flags.h"
#include "model/synth_presets.h"

namespace lk {
namespace {

constexpr const char* kRevisionHelp = "Branch, tag or commit of a hub id; default: main";

// A flag that may be repeated, one value each time.
CLI::Option* repeatable(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                        const std::string& help) {
  return app.add_option(name, values, help)->allow_extra_args(false)->take_all();
}

// A flag whose value is one of a few words.
template <typename T>
void add_choice(CLI::App& app, const std::string& name, T& value,
                const std::map<std::string, T>& choices, const std::string& help) {
  std::vector<std::string> words;
  for (const auto& [word, choice] : choices) words.push_back(word);
  app.add_option_function<std::string>(
         name, [&value, choices](const std::string& word) { value = choices.at(word); }, help)
      ->check(CLI::IsMember(words));
}

void add_model_flags(CLI::App& app, ModelFlags& flags, const std::string& lora_form) {
  app.add_option("MODEL", flags.model,
                 "Folder of the model (config.json, safetensors, tokenizer.json) or its id on the "
                 "Hugging Face hub, downloaded into the cache if it is not there")
      ->required();
  app.add_option("--revision", flags.revision, kRevisionHelp);
  repeatable(app, "--lora", flags.lora,
             "An adapter, a PEFT folder or a hub id, and the name to call it by (may be repeated)")
      ->type_name(lora_form);
  add_choice(
      app, "--lora-expert-orientation", flags.adapter_options.orientation,
      {{"standard", ExpertOrientation::kStandard}, {"swapped", ExpertOrientation::kSwapped}},
      "Side of a square expert matrix that lora_A is on, where the adapter's files leave it open");
  app.add_option("--max-lora-rank", flags.adapter_options.max_rank,
                 "Refuse adapters of a larger rank")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--device", flags.device, kDeviceHelp)->capture_default_str();
  app.add_option("--kernels", flags.kernels,
                 "Kernels to run on, a name that `lorikeet inspect` lists; default: "
                 "LORIKEET_KERNELS, or the best");
  app.add_option("--moe-backend", flags.moe_backend, kMoeBackendHelp)->default_str("auto");
  add_choice<std::optional<ActivationPrecision>>(
      app, "--activations", flags.activations,
      {{"bf16", ActivationPrecision::kBF16}, {"8bit", ActivationPrecision::k8Bit}},
      kActivationsHelp);
  add_choice(app, "--kv-dtype", flags.kv_type, {{"bf16", KvType::kBF16}, {"f32", KvType::kF32}},
             "Number format of the KV cache; default: bf16");
}

void add_sampling_flags(CLI::App& app, SamplingFlags& flags) {
  app.add_option("--temperature", flags.temperature,
                 "0 takes the most likely token (greedy); default: the model's "
                 "generation_config.json, and greedy if it sets none");
  app.add_option("--top-p", flags.top_p,
                 "Sample from the most likely tokens with this much probability in all");
  app.add_option("--top-k", flags.top_k, "Sample from this many most likely tokens; 0: all");
  app.add_option("--min-p", flags.min_p,
                 "Leave out tokens less likely than this times the most likely one");
  app.add_option("--repetition-penalty", flags.repetition_penalty,
                 "Divides (or multiplies) logits of tokens seen; 1: none");
  app.add_option("--presence-penalty", flags.presence_penalty,
                 "Taken off the logits of tokens in the output");
  app.add_option("--frequency-penalty", flags.frequency_penalty, "The same, times their count");
  check_seed(app.add_option("--seed", flags.seed,
                            "Seed of every request without its own; default: a new one for each"));
}

void add_run(CLI::App& app, RunOptions& run) {
  add_model_flags(app, run.model, "NAME=PATH");
  repeatable(app, "--adapter", run.adapters,
             "Answer with this adapter, 'base' for none. May be repeated: all answer in one batch. "
             "Default: base. With --input: for lines "
             "without one");
  auto* prompt = app.add_option("--prompt", run.prompt, "Text to continue, as it is");
  auto* chat =
      app.add_option("--chat", run.chat, "A user's message, put through the model's chat template");
  auto* input = app.add_option(
      "--input", run.input, "File with one request a line (JSONL), - for stdin, run as one batch");
  prompt->excludes(chat)->excludes(input);
  chat->excludes(input);
  app.add_option("--max-tokens", run.max_tokens,
                 "Tokens of an answer at most; default: 1024, less where the context ends")
      ->check(CLI::Range(0, kLargestCount));
  add_sampling_flags(app, run.sampling);
  repeatable(app, "--stop", run.stop, "End the text before this string (may be repeated)");
  app.add_flag("--ignore-eos", run.ignore_eos, "Go on behind end-of-turn tokens");
  app.add_flag("--json", run.json,
               "Print one JSON object for each answer, in the order of the input");
  app.add_option("--logprobs", run.logprobs,
                 "With --json: log-probabilities of the tokens, and of the K most likely")
      ->type_name("K")
      ->check(CLI::Range(0, 100));
  app.add_flag("--prompt-logprobs", run.prompt_logprobs,
               "With --json: log-probabilities of the prompt's tokens");
  app.add_option("--threads", run.threads, "CPU threads; default: all")->check(CLI::Range(0, 4096));
  app.add_option("--max-num-seqs", run.max_num_seqs, "Requests that run at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", run.max_num_batched_tokens,
                 "Tokens of one step; default: 512, or --max-num-seqs if that is more")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-model-len", run.max_model_len,
                 "Longest context, prompt and answer; default: the model's")
      ->check(CLI::Range(1, kLargestCount));
}

void add_synth(CLI::App& app, SynthCommandOptions& synth) {
  app.add_option("PRESET", synth.preset,
                 "One of " + synth_presets() + "; or a folder with a config.json")
      ->required();
  app.add_option("FOLDER", synth.folder, "Where to write it")->required();
  app.add_option("--layers", synth.layers, "Keep this many layers; default: all")
      ->check(CLI::Range(1, kLargestCount));
  app.add_option("--adapters", synth.adapters, "PEFT adapters to write into FOLDER/adapter0 ...")
      ->check(CLI::Range(0, 10000));
  app.add_option("--rank", synth.rank, "Their rank")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  check_number(app.add_option("--router-skew", synth.router_skew,
                              "Make some experts popular: the one at place k of a random order is "
                              "(1 + k)^-S as likely as the first; 0: all alike")
                   ->type_name("S"),
               0, 10);
  check_seed(app.add_option("--seed", synth.seed, "Seed of all values"))->capture_default_str();
}

void add_synth_lora(CLI::App& app, SynthLoraOptions& lora) {
  app.add_option("MODEL", lora.model, "Folder or hub id of the model")->required();
  app.add_option("FOLDER", lora.folder, "Where to write the adapter")->required();
  app.add_option("--revision", lora.revision, kRevisionHelp);
  app.add_option("--r,--rank", lora.rank, "Its rank")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  check_number(app.add_option("--alpha", lora.alpha, "lora_alpha; default: twice the rank"), 1e-6,
               1e6);
  lora.targets = {"attention", "experts"};
  app.add_option(
         "--targets", lora.targets,
         "What it adapts, one or more of: attention, recurrent, experts, shared, latent, router, "
         "head, embedding, all, or the end of a module's path (q_proj, "
         "layers.3.mlp.experts.down_proj)")
      ->type_name("NAME")
      ->delimiter(',')
      ->expected(1, 10000)
      ->capture_default_str();
  check_seed(app.add_option("--seed", lora.seed, "Seed of all values"))->capture_default_str();
}

// What a line of --input may hold.
constexpr const char* kLineFields =
    R"(With --input each line is a JSON object: one of
  prompt                 text to continue, as it is
  prompt_ids             the same as token ids
  messages               a conversation for the chat template, with tools and chat_template_kwargs
and, where wanted,
  id                     anything; stands in the answer
  adapter                a name of --lora; null or "base": none
  max_tokens, stop, stop_token_ids, ignore_eos
  temperature, top_k, top_p, min_p, seed
  repetition_penalty, presence_penalty, frequency_penalty
  logprobs               true, or how many of the most likely tokens to list
  prompt_logprobs        true or false
With --json a line's answer holds id, adapter, prompt_ids, output_ids, text, finish_reason and the
log-probabilities asked for; a bad line's holds id and error, and the exit code is 1.)";

constexpr const char* kInspectCodes =
    "Exit code: 0 if model and adapters can be run (whether the model's values are numbers is "
    "found "
    "when they are loaded), 1 if an adapter can be read but does not fit or the tokenizer, chat "
    "template or generation_config.json cannot be used (the report says why), 2 if another file is "
    "missing or broken.";

void add_pull(CLI::App& app, PullOptions& pull) {
  app.add_option("ID", pull.id, "The model's id on the hub: ORG/NAME")->required();
  app.add_option("--revision", pull.revision, kRevisionHelp);
  app.add_flag("--adapter", pull.adapter, "ID is an adapter's");
}

// CLI11's messages may run over several lines.
std::string one_sentence(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// A sentence about the first word, where it is no command; empty if it is one or a flag.
std::string wrong_command(const CLI::App& app, int argc, const char* const* argv) {
  const std::string word = argc < 2 ? "" : argv[1];
  if (word.rfind('-', 0) == 0) return "";
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == word) return "";
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  if (argc < 2) return "give a command, one of: " + names;
  return fmt::format("there is no command '{}'; known are: {}", word, names);
}

Result<std::vector<std::string>> arguments(int argc, const char* const* argv) {
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  if (args.empty() || args[0] != "serve") return args;
  LK_ASSIGN_OR_RETURN(std::vector<std::string> rest,
                      normalize_serve_args({args.begin() + 1, args.end()}));
  rest.insert(rest.begin(), "serve");
  return rest;
}

ParsedFlags finished(ServeOptions serve) {
  if (const Status good = finish_serve_flags(serve); !good) {
    return UsageText{"lorikeet: " + good.error().message + " (see lorikeet serve --help)\n",
                     kExitUsage};
  }
  return serve;
}

}  // namespace

ParsedFlags parse_flags(int argc, const char* const* argv) {
  RunOptions run;
  InspectOptions inspect;
  SynthCommandOptions synth;
  SynthLoraOptions synth_lora;
  QuantizeCommandOptions quantize;
  ServeOptions serve;
  PullOptions pull;
  CLI::App app("Many LoRA adapters on one quantized Mixture-of-Experts language model.",
               "lorikeet");
  app.set_version_flag("--version", std::string("lorikeet ") + kVersion);
  app.require_subcommand(1);
  CLI::App* run_command =
      app.add_subcommand("run", "Answer prompts on the command line, or a file of them");
  add_run(*run_command, run);
  CLI::App* serve_command = app.add_subcommand(
      "serve", "Answer requests over HTTP as OpenAI's API does, each with the adapter it names");
  add_serve_flags(*serve_command, serve);
  CLI::App* inspect_command = app.add_subcommand(
      "inspect",
      "Say what a model is made of, what memory it takes, what runs it, and whether adapters fit");
  add_model_flags(*inspect_command, inspect.model, "[NAME=]PATH");
  inspect_command->add_flag("--json", inspect.json, "Print one JSON object");
  CLI::App* synth_command = app.add_subcommand(
      "synth", "Write a checkpoint of random weights in a published layout, for measurements");
  add_synth(*synth_command, synth);
  CLI::App* synth_lora_command = app.add_subcommand(
      "synth-lora", "Write an adapter of random weights for a model, as PEFT saves it");
  add_synth_lora(*synth_lora_command, synth_lora);
  CLI::App* quantize_command = app.add_subcommand(
      "quantize", "Write a checkpoint in a quantized format, in the layout of a published tool");
  add_quantize_flags(*quantize_command, quantize);
  CLI::App* pull_command = app.add_subcommand(
      "pull",
      "Bring a model or an adapter from the hub into the Hugging Face cache and print its folder");
  add_pull(*pull_command, pull);
  run_command->footer(kLineFields);
  inspect_command->footer(kInspectCodes);
  if (const std::string wrong = wrong_command(app, argc, argv); !wrong.empty())
    return UsageText{"lorikeet: " + wrong + " (see lorikeet --help)\n", kExitUsage};
  const auto args = arguments(argc, argv);
  if (!args) {
    return UsageText{"lorikeet: " + args.error().message + " (see lorikeet --help)\n", kExitUsage};
  }
  try {
    app.parse(std::vector<std::string>(args->rbegin(), args->rend()));
  } catch (const CLI::CallForVersion&) {
    return UsageText{std::string("lorikeet ") + kVersion + "\n", kExitGood};
  } catch (const CLI::CallForHelp&) {
    return UsageText{app.help(), kExitGood};
  } catch (const CLI::ParseError& error) {
    return UsageText{"lorikeet: " + one_sentence(error.what()) + " (see lorikeet --help)\n",
                     kExitUsage};
  }
  if (serve_command->parsed()) return finished(std::move(serve));
  if (inspect_command->parsed()) return inspect;
  if (synth_command->parsed()) return synth;
  if (synth_lora_command->parsed()) return synth_lora;
  if (quantize_command->parsed()) return quantize;
  if (pull_command->parsed()) return pull;
  return run;
}

}  // namespace lk
