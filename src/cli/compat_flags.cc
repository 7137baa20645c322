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
     "ignored; --kv-cache-memory and --adapter-memory say how much memory is used"},
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
    {"--code-revision", "", "ignored; code of a checkpoint is never run"},
    {"--all2all-backend", "", kOneProcess},
    {"--disable-frontend-multiprocessing", nullptr, kOneProcess},
    {"--max-parallel-loading-workers", "", kOneProcess},
    {"--linear-backend", "", "ignored; see --kernels"},
    {"--num-gpu-blocks-override", "", "ignored; see --kv-cache-memory"},
    {"--enable-mixed-moe-lora-format", nullptr, "every adapter's layout is found out by itself"},
    {"--specialize-active-lora", nullptr, "ignored; nothing is captured at start"},
    {"--disable-custom-all-reduce", nullptr, kOneProcess},
    {"--limit-mm-per-prompt", "", "prompts are text alone"},
    {"--language-model-only", nullptr, "prompts are text alone"},
    {"--chat-template-content-format", "auto|string|openai", "found out from the chat template"},
    {"--response-role", "assistant", "answers are the assistant's"},
    {"--enable-prompt-tokens-details", nullptr, "usage always tells the cached tokens"},
    {"--enable-server-load-tracking", nullptr, "/load is always there"},
    {"--enable-request-id-headers", nullptr, "X-Request-Id is always sent"},
    {"--disable-fastapi-docs", nullptr, "there are none"},
    {"--max-log-len", "", "prompts are logged only with --log-prompts, whole"},
    {"--allowed-origins", "", "browsers are let in from everywhere; the key guards"},
};

// What would change what people get, and is not done here.
struct Refusal {
  const char* name;
  bool takes_value;
  const char* instead;
};
constexpr const char* kTls = "a proxy in front speaks TLS, deploy/nginx.conf shows how";
constexpr Refusal kRefused[] = {
    {"--ssl-keyfile", true, kTls},
    {"--ssl-certfile", true, kTls},
    {"--ssl-ca-certs", true, kTls},
    {"--ssl-cert-reqs", true, kTls},
    {"--enable-ssl-refresh", false, kTls},
    {"--root-path", true, "a proxy in front takes a prefix off, see deploy/nginx.conf"},
    {"--middleware", true, "no code is loaded into the server"},
    {"--logits-processors", true, "no code is loaded into the server"},
    {"--speculative-config", true, "there is no speculative decoding"},
    {"--hf-overrides", true, "a checkpoint is read as its config.json says"},
    {"--lora-target-modules", true, "an adapter is applied whole or not at all"},
    {"--default-mm-loras", true, "prompts are text alone"},
    {"--kv-transfer-config", true, "keys and values stay in the process"},
    {"--enable-sleep-mode", false, "the server does not sleep"},
    {"--return-tokens-as-token-ids", false, "tokens are told as text"},
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
  for (const Refusal& row : kRefused) {
    const auto refuse = [&row] {
      throw CLI::ValidationError(fmt::format("{} cannot be had here: {}", row.name, row.instead));
    };
    // Hidden from --help, which is about what there is.
    if (row.takes_value) {
      app.add_option_function<std::string>(row.name, [refuse](const std::string&) { refuse(); })
          ->group("");
    } else {
      app.add_flag_callback(row.name, refuse)->group("");
    }
  }
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
