#include "cli/serve_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "cli/compat_flags.h"
#include "cli/config_file.h"
#include "cli/number_flags.h"

namespace lk {
namespace {

// Adds options whose last value counts, for a file of settings stands before the command line.
class Adder {
 public:
  Adder(CLI::App& app, std::string group) : app_(app), group_(std::move(group)) {}

  template <typename T>
  CLI::Option* value(const std::string& name, T& target, const std::string& help) {
    return app_.add_option(name, target, help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group(group_);
  }
  CLI::Option* count(const std::string& name, int& target, const std::string& help, int least,
                     int most) {
    return value(name, target, help)->check(CLI::Range(least, most))->capture_default_str();
  }
  // `many`: several values may follow the flag once.
  CLI::Option* list(const std::string& name, std::vector<std::string>& target,
                    const std::string& help, bool many = false) {
    return app_.add_option(name, target, help)->allow_extra_args(many)->take_all()->group(group_);
  }
  CLI::Option* flag(const std::string& name, bool& target, const std::string& help) {
    return app_.add_flag(name, target, help)->group(group_);
  }
  CLI::Option* bytes(const std::string& name, uint64_t& target, const std::string& help) {
    return check_bytes(app_.add_option(name, target, help))
        ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->type_name("BYTES")
        ->group(group_);
  }

 private:
  CLI::App& app_;
  std::string group_;
};

void add_address(CLI::App& app, ServeOptions& o) {
  Adder add(app, "Address and access");
  add.value("--host", o.host, "Address to listen on; 0.0.0.0: every one of this machine")
      ->capture_default_str();
  add.count("--port", o.port, "Port to listen on; 0: a free one", 0, 65535);
  add.list("--api-key", o.api_keys,
           "Key that requests under /v1 must show (Authorization: Bearer KEY); may be repeated. "
           "Default: LORIKEET_API_KEY, or none");
  add.list("--admin-api-key", o.admin_api_keys,
           "Key for loading and unloading adapters; default: who may infer may do that too");
  add.list("--served-model-name", o.served_names,
           "What the base model is called in the API; default: MODEL", /*many=*/true);
}

void add_model(CLI::App& app, ServeOptions& o) {
  app.add_option("MODEL", o.model.model,
                 "Folder of the model (config.json, safetensors, tokenizer.json), or its id on the "
                 "Hugging Face hub");
  Adder add(app, "Model");
  add.value("--model", o.model_flag, "The same as MODEL");
  add.value("--revision", o.revision, "Branch, tag or commit of a hub id; default: main");
  add.value("--tokenizer", o.tokenizer,
            "Folder or hub id with another tokenizer.json (and chat template); default: the "
            "model's");
  add.value("--tokenizer-revision", o.tokenizer_revision, "Of --tokenizer, if it is a hub id");
  add.value("--download-dir", o.download_dir,
            "The hub's cache, as HF_HUB_CACHE says; default: that of other Hugging Face tools");
  add.value("--max-model-len", o.max_model_len,
            "Longest context, prompt and answer; default: the model's")
      ->check(CLI::Range(1, kLargestCount));
  add.value("--chat-template", o.chat_template,
            "File with the chat template (Jinja); default: the model's");
  add.value("--reasoning-parser", o.reasoning_parser,
            "How reasoning is told from content; default: what the chat template suggests");
  add.value("--tool-call-parser", o.tool_call_parser,
            "How tool calls are read; default: what the chat template suggests");
  add.value("--generation-config", o.generation_config,
            "Where sampling defaults come from: auto (the model's folder), vllm (none), or a "
            "folder")
      ->capture_default_str();
  add.value("--override-generation-config", o.override_generation_config,
            "JSON with sampling defaults that win over those: {\"temperature\": 0.2}");
  check_seed(add.value("--seed", o.seed,
                       "Seed of every request without its own; default: a new one for each"));
  add.count("--max-logprobs", o.max_logprobs, "Most likely tokens that a request may ask for", 0,
            100);
  add.value("--device", o.model.device, kDeviceHelp)->capture_default_str();
  add.value("--kernels", o.model.kernels,
            "Kernels to run on, a name that `lorikeet inspect` lists; default: LORIKEET_KERNELS, "
            "or the best");
  add.value("--moe-backend", o.model.moe_backend, kMoeBackendHelp)->default_str("auto");
  add.value("--activations", o.activations, kActivationsHelp)
      ->check(CLI::IsMember({"bf16", "8bit"}));
  add.value("--kv-dtype", o.kv_dtype, "Number format of the KV cache")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
}

void add_adapters(CLI::App& app, ServeOptions& o) {
  Adder add(app, "Adapters");
  add.list("--lora-modules", o.lora_modules,
           "Adapters to load at the start: NAME=PATH or {\"name\": ..., \"path\": ...}",
           /*many=*/true);
  add.value("--lora-dir", o.lora_dir,
            "Folder of adapters: a model name that is not known is looked up here and loaded");
  add.flag("--allow-runtime-lora", o.allow_runtime_lora,
           "Allow /v1/load_lora_adapter and /v1/unload_lora_adapter");
  add.list("--lora-root", o.lora_roots,
           "Folder below which adapters may be loaded over the API, beside --lora-dir and the "
           "hub's cache");
  add.list("--lora-hub-allow", o.lora_hub_allow,
           "Hub ids that may be fetched and loaded over the API, with * and ?");
  add.count("--max-loras", o.max_loras, "Distinct adapters in one batch", 1, 1024);
  add.count("--max-cpu-loras", o.max_cpu_loras, "Adapters in memory; 0: as --adapter-memory holds",
            0, kLargestCount);
  add.bytes("--adapter-memory", o.adapter_memory,
            "Memory for adapters; default: a quarter of what is left beside the model");
  add.count("--max-lora-rank", o.model.adapter_options.max_rank, "Refuse adapters of a larger rank",
            1, 65536);
  add.value("--lora-expert-orientation", o.orientation,
            "Side of a square expert matrix that lora_A is on, where the files leave it open")
      ->check(CLI::IsMember({"auto", "standard", "swapped"}))
      ->capture_default_str();
}

void add_engine(CLI::App& app, ServeOptions& o) {
  Adder add(app, "Batch and memory");
  add.count("--max-num-seqs", o.max_num_seqs, "Requests that run at once", 1, 4096);
  add.value("--max-num-batched-tokens", o.max_num_batched_tokens,
            "Tokens of one step; default: 512, or --max-num-seqs if that is more")
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", o.prefix_caching,
               "Reuse KV blocks of equal beginnings under the same adapter; default: on")
      ->group("Batch and memory");
  add.bytes("--kv-cache-memory", o.kv_cache_memory,
            "Memory for the KV cache; default: half of what is left beside the model");
  add.count("--threads", o.threads, "CPU threads; 0: all that the process may use", 0, 4096);
  add.count("--max-queue", o.max_queue,
            "Requests that may wait beyond --max-num-seqs; more get 429; -1: any number", -1,
            kLargestCount);
  check_number(add.value("--request-timeout", o.request_timeout,
                         "Seconds that an answer may take; 0: any time"),
               0, 1e9, "SECONDS")
      ->capture_default_str();
  check_number(
      add.value("--shutdown-timeout", o.shutdown_timeout,
                "Seconds that running requests get after SIGTERM; 0: as long as they take"),
      0, 1e9, "SECONDS")
      ->capture_default_str();
  add.flag("--log-requests,--enable-log-requests", o.log_requests,
           "A line for each request on stderr, without prompts");
  add.flag("--log-prompts", o.log_prompts, "Prompts too");
}

}  // namespace

void add_serve_flags(CLI::App& app, ServeOptions& options) {
  add_model(app, options);
  add_address(app, options);
  add_adapters(app, options);
  add_engine(app, options);
  add_compat_flags(app, options.notes);
  app.footer(
      "--config FILE reads flags from a YAML file (\"max-model-len: 4096\"); flags on the "
      "command line win.");
}

namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kShort = {{
    {"-tp", "--tensor-parallel-size"},
    {"-pp", "--pipeline-parallel-size"},
    {"-dp", "--data-parallel-size"},
    {"-cc", "--compilation-config"},
    {"-O", "--compilation-config"},
}};

std::string long_name(const std::string& arg) {
  const size_t equals = std::min(arg.find('='), arg.size());
  std::string name = arg.substr(0, equals);
  for (const auto& [shorter, longer] : kShort) {
    if (name == shorter) return std::string(longer) + arg.substr(equals);
  }
  if (name.size() == 3 && name.starts_with("-O")) return "--compilation-config=" + name.substr(2);
  if (!name.starts_with("--")) return arg;
  std::replace(name.begin(), name.end(), '_', '-');
  return name + arg.substr(equals);
}

}  // namespace

Status finish_serve_flags(ServeOptions& o) {
  if (o.model.model.empty()) o.model.model = o.model_flag;
  if (o.model.model.empty()) return invalid("serve needs a MODEL");
  o.model.kv_type = o.kv_dtype == "f32" ? KvType::kF32 : KvType::kBF16;
  if (o.orientation == "standard") {
    o.model.adapter_options.orientation = ExpertOrientation::kStandard;
  } else if (o.orientation == "swapped") {
    o.model.adapter_options.orientation = ExpertOrientation::kSwapped;
  }
  if (!o.activations.empty()) {
    o.model.activations =
        o.activations == "8bit" ? ActivationPrecision::k8Bit : ActivationPrecision::kBF16;
  }
  // An unset variable on a command line must not open the server.
  for (const auto& [flag, keys] :
       {std::pair{"--api-key", &o.api_keys}, std::pair{"--admin-api-key", &o.admin_api_keys}}) {
    if (std::find(keys->begin(), keys->end(), "") != keys->end())
      return invalid("{} is empty: leave it out for a server without keys", flag);
  }
  for (size_t i = 0; i < o.served_names.size(); ++i) {
    const std::string& name = o.served_names[i];
    if (name.empty()) return invalid("--served-model-name is empty");
    if (std::find(o.served_names.begin(), o.served_names.begin() + i, name) !=
        o.served_names.begin() + i) {
      return invalid("--served-model-name names '{}' twice", name);
    }
  }
  if (o.max_num_batched_tokens && *o.max_num_batched_tokens < o.max_num_seqs) {
    return invalid("--max-num-batched-tokens must be at least --max-num-seqs ({}), not {}",
                   o.max_num_seqs, *o.max_num_batched_tokens);
  }
  if (o.max_cpu_loras != 0 && o.max_cpu_loras < o.max_loras) {
    return invalid("--max-cpu-loras must be at least --max-loras ({}), not {}", o.max_loras,
                   o.max_cpu_loras);
  }
  return {};
}

Result<std::vector<std::string>> normalize_serve_args(const std::vector<std::string>& args) {
  std::vector<std::string> given, settings;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string arg = long_name(args[i]);
    std::string file;
    if (arg.starts_with("--config=")) {
      file = arg.substr(std::string_view("--config=").size());
    } else if (arg == "--config") {
      if (i + 1 == args.size()) return invalid("--config needs a file");
      file = args[++i];
    } else {
      given.push_back(arg);
      continue;
    }
    LK_ASSIGN_OR_RETURN(std::vector<std::string> more, read_config_file(file));
    for (std::string& setting : more) settings.push_back(long_name(setting));
  }
  settings.insert(settings.end(), given.begin(), given.end());
  return settings;
}

}  // namespace lk
