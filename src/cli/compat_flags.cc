#include "cli/compat_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace lk {
namespace {

struct Compat {
  const char* name;
  const char* allowed;  // words a value may be, by '|'; "": any; null: the flag takes no value
  const char* meaning;  // "--name: <meaning>"
};

constexpr const char* kOneProcess = "one process on one machine serves all";
constexpr Compat kCompat[] = {
    {"--enable-lora", nullptr, "adapters can always be used"},
    {"--no-enable-lora", nullptr, "adapters can always be used, and cost nothing while none is"},
    {"--tensor-parallel-size", "1", kOneProcess},
    {"--pipeline-parallel-size", "1", kOneProcess},
    {"--data-parallel-size", "1", kOneProcess},
    {"--api-server-count", "1", kOneProcess},
    {"--enable-expert-parallel", nullptr, kOneProcess},
    {"--distributed-executor-backend", "", kOneProcess},
    {"--compilation-config", "", "nothing is compiled at start"},
    {"--enforce-eager", nullptr, "nothing is captured or compiled at start"},
    {"--gpu-memory-utilization", "",
     "ignored on CPU; --kv-cache-memory and --adapter-memory say how much memory is used"},
    {"--swap-space", "", "ignored; a request that is put back is computed again"},
    {"--cpu-offload-gb", "0", "weights lie where they are computed with"},
    {"--dtype", "auto|bfloat16", "weights keep their format, activations are bfloat16 or better"},
    {"--quantization", "", "ignored; the format is read from the checkpoint"},
    {"--load-format", "auto|safetensors", "weights are read from safetensors files"},
    {"--tokenizer-mode", "auto|fast", "tokenizer.json is used"},
    {"--trust-remote-code", nullptr, "ignored; code of a checkpoint is never run"},
    {"--lora-dtype", "auto|bfloat16", "adapters are held in bfloat16"},
    {"--fully-sharded-loras", nullptr, kOneProcess},
    {"--lora-extra-vocab-size", "", "ignored; an adapter's own tokens are taken as they are"},
    {"--block-size", "", "ignored; KV blocks have one size"},
    {"--kv-cache-dtype", "auto|bfloat16", "see --kv-dtype"},
    {"--enable-chunked-prefill", nullptr, "prompts are always read in chunks"},
    {"--no-enable-chunked-prefill", nullptr, "prompts are always read in chunks"},
    {"--async-scheduling", nullptr, "ignored"},
    {"--scheduling-policy", "fcfs", "requests are taken in order, fairly among adapters"},
    {"--num-scheduler-steps", "1", "ignored"},
    {"--stream-interval", "1", "every token is sent"},
    {"--attention-backend", "", "ignored; see --kernels"},
    {"--prefix-caching-hash-algo", "", "ignored"},
    {"--enable-auto-tool-choice", nullptr, "always on where a tool-call parser is known"},
    {"--disable-log-requests", nullptr, "requests are logged only with --log-requests"},
    {"--no-enable-log-requests", nullptr, "requests are logged only with --log-requests"},
    {"--disable-log-stats", nullptr, "statistics are not logged, see /metrics"},
    {"--disable-uvicorn-access-log", nullptr, "requests are logged only with --log-requests"},
    {"--uvicorn-log-level", "", "ignored"},
    {"--task", "auto|generate", "the model generates text"},
    {"--runner", "auto|generate", "the model generates text"},
    {"--max-seq-len-to-capture", "", "nothing is captured at start"},
    {"--max-logits-processors", "0", "there are none"},
};

bool is_allowed(std::string_view allowed, std::string_view value) {
  if (allowed.empty()) return true;
  while (true) {
    const size_t bar = allowed.find('|');
    if (allowed.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) return false;
    allowed.remove_prefix(bar + 1);
  }
}

}  // namespace

void add_compat_flags(CLI::App& app, std::vector<std::string>& notes) {
  for (const Compat& row : kCompat) {
    const auto note = [&notes, &row] {
      notes.push_back(fmt::format("{}: {}", row.name, row.meaning));
    };
    if (row.allowed == nullptr) {
      app.add_flag_callback(row.name, note, row.meaning)->group("Known from vllm serve");
      continue;
    }
    app.add_option_function<std::string>(
           row.name,
           [note, &row](const std::string& value) {
             if (!is_allowed(row.allowed, value)) {
               std::string words = row.allowed;
               for (size_t bar; (bar = words.find('|')) != std::string::npos;) {
                 words.replace(bar, 1, " or ");
               }
               throw CLI::ValidationError(fmt::format("{} {}: only {} can be had here: {}",
                                                      row.name, value, words, row.meaning));
             }
             note();
           },
           row.meaning)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group("Known from vllm serve");
  }
}

}  // namespace lk
