// Step times through the whole engine at full size: sampling at temperature 1, contexts of about
// PROMPT tokens, base alone and every stream on one of the adapters, medians. Bytes are counted:
// every weight that a step may read once (experts as a uniform router would touch them), the
// adapters' pairs, keys, values and states.
//   step_bench MODEL [ADAPTER...]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "adapters/adapter.h"
#include "bench/arguments.h"
#include "bench/counts.h"
#include "bench/limits.h"
#include "engine/engine.h"
#include "engine/kv_plan.h"
#include "quant/detect.h"

namespace {

using namespace lk;
using bench::median;
using bench::stored_bytes;

struct Bytes {
  double dense = 0;        // of linears that every step reads whole, the head included
  double experts = 0;      // of all experts of all layers
  double lora_dense = 0;   // of one adapter
  double lora_expert = 0;  // of one adapter's pairs of one expert, in all layers
};

Bytes count_bytes(const Model& model, const std::string& folder, const Adapter* adapter,
                  const bench::Arguments& arguments) {
  const auto checkpoint = Checkpoint::open(folder);
  if (!checkpoint) arguments.die(checkpoint.error().message);
  const auto stored = match_checkpoint(*checkpoint, model.linears());
  if (!stored) arguments.die(stored.error().message);
  Bytes bytes;
  for (const StoredLinear& linear : stored->linears) {
    if (linear.spec->stage == Stage::kEmbedding) continue;
    (linear.spec->experts > 0 ? bytes.experts : bytes.dense) += stored_bytes(linear);
  }
  if (!adapter) return bytes;
  for (const AdapterModule& module : adapter->modules) {
    const double one =
        2.0 * module.max_rank() * static_cast<double>(module.spec->in + module.spec->out);
    (module.spec->experts > 0 ? bytes.lora_expert : bytes.lora_dense) += one;
  }
  return bytes;
}

double step_bytes(const Model& model, const Bytes& bytes, int streams, int context, int adapters) {
  const ModelInfo& info = model.info();
  double total = bytes.dense;
  if (info.experts > 0) {
    const double share = static_cast<double>(info.top_k) / info.experts;
    total += bytes.experts * (1 - std::pow(1 - share, streams));
  }
  const double kv = static_cast<double>(kv_bytes_of_sequence(model.kv_layout(), context));
  total += streams * (kv + static_cast<double>(model.kv_layout().state_bytes()));
  const int used = std::min(streams, adapters);
  total += used * bytes.lora_dense + (adapters > 0 ? streams * info.top_k * bytes.lora_expert : 0);
  return total;
}

struct Bench {
  Model& model;
  const bench::Arguments& arguments;
  std::vector<std::shared_ptr<const EngineAdapter>> adapters;
  int prompt = 1000, steps = 40, chunk = 8192;
  std::string sampler;

  struct Result {
    double step = 0;             // seconds, median of decode steps
    double prompt_tokens_s = 0;  // of the prompts together
  };

  Result run(int streams, bool adapted) {
    EngineOptions options;
    options.max_sequences = streams;
    options.max_step_tokens = std::max(chunk, streams);
    options.max_model_len = prompt + steps + 16;
    options.adapter_slots = std::max<int>(1, static_cast<int>(adapters.size()));
    options.prefix_cache = false;
    auto engine = Engine::create(model, Vocabulary{}, options);
    if (!engine) arguments.die(engine.error().message);
    std::mt19937 rng(1);
    for (int i = 0; i < streams; ++i) {
      Request request;
      for (int t = 0; t < prompt; ++t)
        request.prompt.push_back(static_cast<int32_t>(rng() % (model.info().vocab - 1000)));
      request.sampling.temperature = 1;
      request.sampling.seed = i;
      if (sampler == "top-k") request.sampling.top_k = 50;
      if (sampler != "draw") request.sampling.top_p = 0.95f;
      request.max_tokens = steps + 8;
      request.ignore_eos = true;
      if (adapted) request.adapter = adapters[i % adapters.size()];
      if (auto sent = (*engine)->submit(std::move(request)); !sent)
        arguments.die(sent.error().message);
    }
    std::vector<TokenEvent> events;
    std::vector<double> times;
    const double begin = bench::now();
    double prefilled = 0;
    while (!(*engine)->idle()) {
      events.clear();
      const double start = bench::now();
      (*engine)->step(events);
      const double end = bench::now();
      for (const TokenEvent& event : events) {
        if (event.finish == FinishReason::kError) arguments.die(event.error);
      }
      if ((*engine)->stats().step_tokens > streams) {
        prefilled = end;
      } else if (static_cast<int>(events.size()) == streams) {
        times.push_back(end - start);
      }
    }
    times.erase(times.begin(), times.begin() + std::min<size_t>(4, times.size() - 1));
    return {median(times), streams * prompt / (prefilled - begin)};
  }
};

}  // namespace

int main(int argc, char** argv) {
  bench::Arguments arguments(
      "step_bench",
      "MODEL [ADAPTER...] [--device NAME] [--streams N] [--prompt N] "
      "[--steps N] [--sampler NAME] [--activations NAME]\n"
      "  --streams 0: 1, 4, 16, 64 and 256\n"
      "  --sampler: draw, top-k (50, with top-p 0.95) or top-p (0.95 alone)\n"
      "  --activations: auto or 8bit");
  ModelOptions options;
  options.device = "auto";
  options.adapter_slots = 8;
  int streams = 0, prompt = 1000, steps = 40;
  std::string sampler = "draw", activations = "auto";
  arguments.text("--device", options.device);
  arguments.choice("--sampler", sampler, {"draw", "top-k", "top-p"});
  arguments.choice("--activations", activations, {"auto", "8bit"});
  arguments.number("--streams", streams, 0, 4096);
  arguments.number("--prompt", prompt, 1, 1 << 20);
  arguments.number("--steps", steps, 1, 1 << 20);
  const std::vector<std::string> words = arguments.parse(argc, argv, 1, 64);
  if (activations == "8bit") options.moe.activations = ActivationPrecision::k8Bit;
  double start = bench::now();
  auto loaded = Model::load(words[0], options);
  if (!loaded) arguments.die(loaded.error().message);
  Model& model = **loaded;
  fmt::print("{} on {} ({}), {:.2f} GB of weights, loaded in {:.1f} s\n", words[0],
             model.info().device, model.kernels().name(),
             static_cast<double>(model.info().weight_bytes) * 1e-9, bench::now() - start);

  Bench run{.model = model, .arguments = arguments, .adapters = {}};
  for (const std::string& group : model.info().moe_plan) fmt::print("{}\n", group);
  run.sampler = sampler;
  run.prompt = prompt;
  run.steps = steps;
  std::shared_ptr<const Adapter> first;
  start = bench::now();
  for (size_t i = 1; i < words.size(); ++i) {
    auto adapter = load_peft_adapter(words[i], words[i], model.linears(), {});
    if (!adapter) arguments.die(adapter.error().message);
    if (!first) first = *adapter;
    run.adapters.push_back(std::make_shared<EngineAdapter>(
        EngineAdapter{words[i], i, model.prepare_adapter(*adapter)}));
  }
  if (first) fmt::print("{} adapters in {:.1f} s\n", run.adapters.size(), bench::now() - start);
  const Bytes bytes = count_bytes(model, words[0], first.get(), arguments);
  fmt::print("{:>8} {:>9} {:>10} {:>9} {:>9} {:>13}\n", "streams", "adapters", "ms a step", "tok/s",
             "GB/s", "prompt tok/s");
  std::vector<int> counts = {1, 4, 16, 64, 256};
  if (streams > 0) counts = {streams};
  for (const int count : counts) {
    for (const bool adapted : {false, true}) {
      if (adapted && run.adapters.empty()) continue;
      const auto result = run.run(count, adapted);
      const int used = adapted ? static_cast<int>(run.adapters.size()) : 0;
      fmt::print("{:>8} {:>9} {:>10.2f} {:>9.0f} {:>9.0f} {:>13.0f}\n", count,
                 std::min(used, count), result.step * 1e3, count / result.step,
                 step_bytes(model, bytes, count, prompt + steps / 2, used) / result.step * 1e-9,
                 result.prompt_tokens_s);
      std::fflush(stdout);
    }
  }
  return 0;
}
