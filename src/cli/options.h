// What the command line asks for, as plain values. Filled by flags.cc; the commands read nothing
// else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "kernels/kernels.h"

namespace lk {

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
  std::vector<std::string> lora;  // [NAME=]PATH, a folder or a hub id
  AdapterLoadOptions adapter_options;
  std::string kernels;
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

struct PullOptions {
  std::string id, revision;
  bool adapter = false;
};

struct SynthCommandOptions {
  std::string preset, folder;
  int layers = 0;    // 0: all
  int adapters = 0;  // adapter0, adapter1 ... inside the folder
  int rank = 16;
  uint64_t seed = 0;
};

// Exit codes.
inline constexpr int kExitGood = 0;
inline constexpr int kExitFailed = 1;  // some input line was bad, or stdout was closed
inline constexpr int kExitUsage = 2;   // flags, files or the machine: nothing was run
inline constexpr int kExitInterrupted = 130;

}  // namespace lk
