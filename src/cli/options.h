// What the command line asks for, as plain values. Filled by flags.cc; the commands read nothing
// else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "kernels/kernels.h"
#include "kernels/moe_backends.h"

namespace lk {

// The most that a flag which counts tokens or layers takes.
inline constexpr int kLargestCount = 1 << 30;

inline constexpr const char* kVersion = "0.1.0";

inline constexpr const char* kDeviceHelp =
    "Where to compute: cpu, cuda or cuda:N (an NVIDIA GPU), or auto: the first GPU that the model "
    "fits, else the CPU";
inline constexpr const char* kMoeBackendHelp =
    "How the experts are computed: auto, or a name that `lorikeet inspect` lists; refused where it "
    "lacks something";
inline constexpr const char* kActivationsHelp =
    "Precision in which activations meet quantized experts: bf16 (or better) or 8bit; adapters "
    "always read them unquantized; default: bf16, or what --moe-backend has";

struct LoraFlag {
  std::string name, path;
};

// Parses `--lora` values, NAME=PATH or PATH (named after its last folder). Errors: an empty part, a
// name used twice, or "base", which stands for no adapter.
Result<std::vector<LoraFlag>> parse_lora_flags(const std::vector<std::string>& values);

// What both commands take.
struct ModelFlags {
  std::string model;              // a folder or a hub id
  std::string revision;           // of a hub id; empty: main
  std::string tokenizer;          // a folder with tokenizer.json; empty: the model's
  std::vector<std::string> lora;  // [NAME=]PATH, a folder or a hub id
  AdapterLoadOptions adapter_options;
  std::string device = "auto";  // where it computes: auto, cpu, cuda, cuda:N
  std::string kernels, moe_backend;
  std::optional<ActivationPrecision> activations;
  KvType kv_type = KvType::kBF16;
};

// Set where a flag was given.
struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty,
      frequency_penalty;
  std::optional<int> top_k;
  std::optional<int64_t> seed;
};

struct RunOptions {
  ModelFlags model;
  std::vector<std::string> adapters;  // names, "base" for none
  std::optional<std::string> prompt, chat, input;
  std::optional<int> max_tokens;
  SamplingFlags sampling;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool json = false;
  std::optional<int> logprobs;
  bool prompt_logprobs = false;
  int threads = 0;
  int max_num_seqs = 32, max_model_len = 0;
  std::optional<int> max_num_batched_tokens;
};

struct InspectOptions {
  ModelFlags model;
  bool json = false;
};

struct ServeOptions {
  ModelFlags model;        // its `lora` is empty
  std::string model_flag;  // --model; the word MODEL wins
  std::string revision;
  std::string tokenizer, tokenizer_revision;  // a folder or a hub id
  std::string download_dir;                   // the hub's cache
  std::string kv_dtype = "bf16", orientation = "auto";
  std::string host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> api_keys, admin_api_keys;
  std::vector<std::string> served_names;
  std::vector<std::string> lora_modules;  // NAME=PATH or JSON
  std::string lora_dir;
  std::vector<std::string> lora_roots, lora_hub_allow;
  bool allow_runtime_lora = false;
  int max_loras = 16, max_cpu_loras = 0;
  uint64_t adapter_memory = 0, kv_cache_memory = 0;  // bytes; 0: from what the machine has
  int threads = 0;
  int max_num_seqs = 32;
  std::optional<int> max_model_len, max_num_batched_tokens;
  bool prefix_caching = true;
  std::string activations;
  std::string chat_template, reasoning_parser, tool_call_parser;
  std::string generation_config = "auto";  // "auto", "vllm", or a folder
  std::string override_generation_config;  // JSON
  std::optional<int64_t> seed;
  int max_logprobs = 20;
  int max_queue = -1;
  double request_timeout = 0, shutdown_timeout = 0;  // seconds; 0: none
  bool log_requests = false, log_prompts = false;
  std::vector<std::string> notes;  // what flags of other servers mean here
};

// `--lora-modules` values, NAME=PATH or {"name", "path", "base_model_name"}; an error names what is
// wrong with one, or a name used twice.
Result<std::vector<LoraFlag>> parse_lora_modules(const std::vector<std::string>& values);

struct PullOptions {
  std::string id, revision;
  bool adapter = false;
};

struct SynthCommandOptions {
  std::string preset, folder;
  int layers = 0;    // 0: all
  int adapters = 0;  // adapter0, adapter1 ... inside the folder
  int rank = 16;
  double router_skew = 0;
  uint64_t seed = 0;
};

struct SynthLoraOptions {
  std::string model, revision, folder;  // `model`: a folder or a hub id
  int rank = 16;
  double alpha = 0;  // 0: twice the rank
  std::vector<std::string> targets;
  uint64_t seed = 0;
};

struct QuantizeCommandOptions {
  std::string in, revision, out;  // `in`: a folder or a hub id
  std::string format, recipe;     // `recipe` empty: the format's default
  std::vector<std::string> keep;
  std::optional<std::string> report;  // empty: without perplexity
  uint64_t shard_bytes = 0;           // 0: the default
  int threads = 0;
};

// Exit codes.
inline constexpr int kExitGood = 0;
inline constexpr int kExitFailed = 1;  // some input line was bad, or stdout was closed
inline constexpr int kExitUsage = 2;   // flags, files or the machine: nothing was run
inline constexpr int kExitInterrupted = 130;

}  // namespace lk
