#include "cli/serve.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/hub_models.h"
#include "cli/model_parts.h"
#include "cli/output.h"
#include "cli/request_fields.h"
#include "engine/kv_plan.h"
#include "engine/machine_limits.h"
#include "engine/memory_plan.h"
#include "hub/settings.h"
#include "server/server.h"

namespace lk {
namespace {

constexpr const char* kKeyVariable = "LORIKEET_API_KEY";

void say(const std::string& line) { print_error(line); }

// Activations of a step of some 8,000 tokens, and the driver's own.
constexpr size_t kGpuWorking = size_t{4} << 30;

// Shares out the memory that there was before the model was loaded.
Result<MemoryPlan> memory_plan(const ServeOptions& options, const EngineOptions& engine,
                               const Model& model, const MachineLimits& machine) {
  const KvLayout& layout = model.kv_layout();
  const int length = options.max_model_len.value_or(model.info().max_positions);
  MemoryNeeds needs;
  needs.weights = model.info().weight_bytes;
  MachineLimits limits = machine;
  if (!model.device().is_host()) {
    limits.available = model.device().free_memory() + needs.weights;
    limits.limited_by = model.info().device;
    needs.working = kGpuWorking;
  }
  needs.kv_least = least_kv_bytes(
      layout, {engine.max_sequences, length, engine.max_step_tokens, engine.prefix_cache});
  // With recurrent layers snapshots, too (plan_kv).
  const size_t snapshots = engine.prefix_cache ? 2 * layout.state_bytes() : 0;
  needs.kv_full =
      (needs.kv_least + snapshots) * static_cast<size_t>(std::max(1, options.max_num_seqs));
  if (options.threads > 0) needs.threads = options.threads;
  if (options.kv_cache_memory > 0) needs.kv_bytes = options.kv_cache_memory;
  if (options.adapter_memory > 0) needs.adapter_bytes = options.adapter_memory;
  return plan_memory(needs, limits);
}

// Places are rounded up, and what comes and goes leaves gaps: this share of the memory set aside.
constexpr size_t kGapShare = 16;

// Adapters come and go beside running streams, which must not wait for the GPU's own allocator.
Status set_adapter_memory_aside(Device& device, size_t bytes) try {
  device.set_aside(bytes, MemoryUse::kAdapters);
  return {};
} catch (const std::bad_alloc&) {
  return fail(ErrorKind::kResource, "{} does not give the {} for adapters: lower --adapter-memory",
              std::string(device.name()), format_bytes(bytes));
}

// A GPU loads kernels when they are first used, and compiles those that the program has no machine
// code of, which can take a minute: before the server is ready, not in somebody's request. A prompt
// and single tokens, in an engine of its own.
Status warm_up(Model& model, const Vocabulary& vocabulary) {
  const auto start = std::chrono::steady_clock::now();
  constexpr int kPrompt = 128, kOutput = 4;
  EngineOptions options;
  options.max_sequences = 2;
  options.max_step_tokens = 2 * kPrompt;
  options.max_model_len = std::min(model.info().max_positions, 2 * kPrompt);
  options.adapter_slots = 1;
  options.prefix_cache = false;
  LK_ASSIGN_OR_RETURN(const auto engine, Engine::create(model, vocabulary, options));
  for (const int length : {options.max_model_len - kPrompt, 1}) {
    Request request;
    request.prompt.assign(static_cast<size_t>(std::max(1, length)), 0);
    request.sampling.temperature = 1;
    request.max_tokens = kOutput;
    request.ignore_eos = true;
    LK_RETURN_IF_ERROR(engine->submit(std::move(request)));
  }
  std::vector<TokenEvent> events;
  while (!engine->idle()) engine->step(events);
  for (const TokenEvent& event : events) {
    if (event.finish == FinishReason::kError) return fail(ErrorKind::kResource, "{}", event.error);
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  say(fmt::format("first steps on {}: {:.1f} s", model.info().device, time.count()));
  return {};
}

// What --override-generation-config may hold: what sampling_defaults reads.
constexpr std::array kGenerationKeys = {"do_sample", "temperature", "top_p",
                                        "top_k",     "min_p",       "repetition_penalty"};

Status choose_generation_config(const ServeOptions& options, HfConfig& config) {
  if (options.generation_config == "vllm") {
    config.generation_config = nullptr;
  } else if (options.generation_config != "auto") {
    LK_ASSIGN_OR_RETURN(Json generation,
                        read_json_file(options.generation_config + "/generation_config.json"));
    config.generation_config = std::make_shared<const Json>(std::move(generation));
  }
  if (options.override_generation_config.empty()) return {};
  const char* flag = "--override-generation-config";
  LK_ASSIGN_OR_RETURN(const Json wanted, parse_json(options.override_generation_config, flag));
  if (!wanted.is_object()) return invalid("{} must be a JSON object", flag);
  Json merged = config.generation_config ? *config.generation_config : Json::object();
  for (const auto& [key, value] : wanted.items()) {
    if (std::find(kGenerationKeys.begin(), kGenerationKeys.end(), key) == kGenerationKeys.end())
      return invalid("{}: '{}' cannot be set; {} can", flag, key, fmt::join(kGenerationKeys, ", "));
    merged[key] = value;
  }
  // Whoever sets a temperature wants it to count, whatever the model's own file says.
  if (wanted.contains("temperature") && !wanted.contains("do_sample")) merged["do_sample"] = true;
  config.generation_config = std::make_shared<const Json>(std::move(merged));
  return {};
}

Result<ServedModel> served_model(const ServeOptions& options, const std::string& folder,
                                 ModelParts& parts) {
  ServedModel served;
  served.names = options.served_names;
  if (served.names.empty()) served.names = {options.model.model};
  served.root = options.model.model;
  served.created = std::time(nullptr);
  served.info = parts.model->info();
  served.tokenizer = parts.tokenizer;
  served.no_template = parts.no_template;
  if (!options.chat_template.empty()) {
    LK_ASSIGN_OR_RETURN(served.chat_template, ChatTemplate::load(folder, options.chat_template));
  } else {
    served.chat_template = std::move(parts.chat_template);
  }
  if (served.chat_template) served.parsers = detect_output_parsers(served.chat_template->source());
  if (!options.reasoning_parser.empty()) served.parsers.reasoning = options.reasoning_parser;
  if (!options.tool_call_parser.empty()) served.parsers.tools = options.tool_call_parser;
  LK_RETURN_IF_ERROR(make_output_parser(
      {.reasoning = served.parsers.reasoning, .tools = served.parsers.tools, .prompt_tail = {}},
      *served.tokenizer));
  LK_ASSIGN_OR_RETURN(HfConfig config, HfConfig::read(folder));
  LK_RETURN_IF_ERROR(choose_generation_config(options, config));
  SamplingParams start;
  start.temperature = 1;  // the API's default, where run's is greedy
  LK_ASSIGN_OR_RETURN(served.defaults.sampling, sampling_defaults({}, config, start));
  if (options.seed) served.seed = static_cast<uint64_t>(*options.seed);
  served.max_logprobs = options.max_logprobs;
  return served;
}

Status load_adapters(const std::vector<LoraFlag>& flags, AdapterStore& store) {
  std::vector<std::future<Status>> loads;
  for (const LoraFlag& flag : flags) {
    LK_ASSIGN_OR_RETURN(const std::string folder, find_adapter(flag.path, ""));
    auto promise = std::make_shared<std::promise<Status>>();
    loads.push_back(promise->get_future());
    store.load(
        flag.name, folder, /*replace=*/false,
        [promise, name = flag.name](Result<AdapterStore::Adapters> done) {
          if (done) return promise->set_value({});
          promise->set_value(tl::unexpected<Error>(Error{
              done.error().kind, fmt::format("adapter '{}': {}", name, done.error().message)}));
        });
  }
  Status all;
  for (auto& load : loads) {
    if (Status one = load.get(); !one && all) all = std::move(one);
  }
  return all;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

Result<ServerOptions> server_options(const ServeOptions& options) {
  ServerOptions server;
  server.version = kVersion;
  server.http.host = options.host;
  server.http.port = options.port;
  server.keys = {options.api_keys, options.admin_api_keys};
  const char* key = std::getenv(kKeyVariable);
  if (server.keys.infer.empty() && key != nullptr) {
    if (*key == '\0')
      return invalid("{} is set but empty: unset it for a server without keys", kKeyVariable);
    server.keys.infer = {key};
  }
  server.generation.max_running = options.max_num_seqs;
  server.generation.max_queue = options.max_queue;
  server.generation.request_timeout = milliseconds(options.request_timeout);
  server.shutdown_timeout = milliseconds(options.shutdown_timeout);
  server.paths.roots = options.lora_roots;
  if (!options.lora_dir.empty()) server.paths.roots.push_back(options.lora_dir);
  LK_ASSIGN_OR_RETURN(const HubSettings hub, hub_settings_from_environment());
  server.paths.roots.push_back(hub.cache);
  server.paths.hub_patterns = options.lora_hub_allow;
  server.allow_runtime_lora = options.allow_runtime_lora;
  server.max_loras = options.max_loras;
  server.log_requests = options.log_requests || options.log_prompts;
  server.log_prompts = options.log_prompts;
  return server;
}

std::string none_if_empty(const std::string& text) { return text.empty() ? "none" : text; }

void print_plan(const ServeOptions& options, const ModelParts& parts, const ServedModel& served,
                const MemoryPlan& memory, const std::vector<AdapterStatus>& adapters,
                const Engine& engine) {
  const ModelInfo& info = served.info;
  say(fmt::format("device {}: {}", info.device, info.device_reason));
  say(fmt::format("model {} ({}, {} layers, {} experts, {}), kernels {}",
                  fmt::join(served.names, ", "), info.architecture, info.layers, info.experts,
                  format_bytes(info.weight_bytes), parts.model->kernels().name()));
  for (const std::string& group : info.moe_plan) say(group);
  say(fmt::format("reasoning parser {}, tool-call parser {}, chat template {}",
                  none_if_empty(served.parsers.reasoning), none_if_empty(served.parsers.tools),
                  served.chat_template ? "found" : "none"));
  if (!served.chat_template && served.no_template.kind != ErrorKind::kNotFound) {
    print_warning(
        fmt::format("requests with messages will be refused: {}", served.no_template.message));
  }
  say(memory.describe());
  const int states = engine.state_slots();
  say(fmt::format("KV blocks: {}; {} requests at once, context {}",
                  fmt::join(engine.total_blocks(), " + "),
                  states > 0 ? states : options.max_num_seqs, served.max_model_len));
  if (states > 0) {
    say(fmt::format(
        "recurrent layers: {} a request, {} states kept for shared prefixes{}",
        format_bytes(parts.model->kv_layout().state_bytes()), engine.state_snapshots(),
        states < options.max_num_seqs ? "; memory for fewer requests than --max-num-seqs" : ""));
  }
  std::vector<std::string> names;
  for (const AdapterStatus& adapter : adapters) {
    names.push_back(fmt::format("{} (rank {}, {})", adapter.name, adapter.max_rank,
                                format_bytes(adapter.bytes)));
    for (const std::string& warning : adapter.warnings) {
      print_warning(fmt::format("adapter {}: {}", adapter.name, warning));
    }
  }
  say(fmt::format("adapters: {}{}{}",
                  names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
                  options.lora_dir.empty() ? "" : ", others from " + options.lora_dir,
                  options.allow_runtime_lora ? ", may be loaded over the API" : ""));
}

Result<int> serve(const ServeOptions& options) {
  for (const std::string& note : options.notes) say(note);
  // Before any thread runs: everything that looks into the cache reads this variable.
  if (!options.download_dir.empty())
    ::setenv("HF_HUB_CACHE", options.download_dir.c_str(), /*overwrite=*/1);
  LK_ASSIGN_OR_RETURN(const std::vector<LoraFlag> lora, parse_lora_modules(options.lora_modules));
  for (const LoraFlag& adapter : lora) {
    const auto& names = options.served_names;
    const bool taken = names.empty()
                           ? adapter.name == options.model.model
                           : std::find(names.begin(), names.end(), adapter.name) != names.end();
    if (taken) return invalid("--lora-modules {}: that is the base model's name", adapter.name);
  }
  LK_ASSIGN_OR_RETURN(ServerOptions server_opts, server_options(options));
  ModelFlags flags = options.model;
  LK_ASSIGN_OR_RETURN(flags.model, find_model(flags.model, options.revision));
  if (!options.tokenizer.empty() && options.tokenizer != options.model.model) {
    LK_ASSIGN_OR_RETURN(flags.tokenizer,
                        find_tokenizer(options.tokenizer, options.tokenizer_revision));
  }
  std::error_code unreadable;
  if (!options.lora_dir.empty() && !std::filesystem::is_directory(options.lora_dir, unreadable)) {
    return fail(ErrorKind::kNotFound, "--lora-dir {}: there is no such folder", options.lora_dir);
  }

  const MachineLimits limits = machine_limits();
  const int threads = options.threads > 0 ? options.threads : limits.cpus;
  LK_ASSIGN_OR_RETURN(ModelParts parts,
                      load_model_parts(flags, /*lora=*/true, threads, options.max_loras));
  LK_ASSIGN_OR_RETURN(ServedModel served, served_model(options, flags.model, parts));

  EngineOptions engine_options;
  engine_options.max_sequences = options.max_num_seqs;
  engine_options.max_step_tokens = options.max_num_batched_tokens.value_or(
      std::max(default_step_tokens(parts.model->device()), options.max_num_seqs));
  engine_options.max_model_len = options.max_model_len.value_or(0);
  engine_options.adapter_slots = options.max_loras;
  engine_options.prefix_cache = options.prefix_caching;
  LK_ASSIGN_OR_RETURN(const MemoryPlan memory,
                      memory_plan(options, engine_options, *parts.model, limits));
  engine_options.kv_bytes = memory.kv_bytes;
  Device& device = parts.model->device();
  LK_RETURN_IF_ERROR(set_adapter_memory_aside(device, memory.adapter_bytes));
  const Vocabulary vocabulary = make_vocabulary(parts.tokenizer, served.info.vocab);
  if (!device.is_host()) {
    LK_RETURN_IF_ERROR(warm_up(*parts.model, vocabulary));
  }
  LK_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                      Engine::create(*parts.model, vocabulary, engine_options));
  served.max_model_len = engine->max_model_len();

  AdapterStoreOptions store_options;
  store_options.max_bytes = memory.adapter_bytes;
  if (!device.is_host()) store_options.max_bytes -= memory.adapter_bytes / kGapShare;
  store_options.max_resident = options.max_cpu_loras;
  store_options.directory = options.lora_dir;
  store_options.load = flags.adapter_options;
  auto store = std::make_unique<AdapterStore>(*parts.model, store_options);
  LK_RETURN_IF_ERROR(load_adapters(lora, *store));
  print_plan(options, parts, served, memory, store->list(), *engine);

  server_opts.end_if_stuck = !device.is_host();  // on a slow CPU a step may just be long
  raise_file_limit();
  Server server(served, std::move(engine), std::move(store), std::move(server_opts));
  LK_RETURN_IF_ERROR(server.listen());
  const bool local = options.host == "127.0.0.1" || options.host == "localhost";
  say(fmt::format("ready on {}{}", server.address(),
                  local ? " (this machine alone; --host 0.0.0.0 lets others in)" : ""));
  return server.run() ? kExitGood : kExitFailed;
}

}  // namespace

int serve_command(const ServeOptions& options) {
  const Result<int> code = serve(options);
  if (code) return *code;
  print_error(code.error().message);
  return interrupted() ? kExitInterrupted : kExitUsage;
}

}  // namespace lk
