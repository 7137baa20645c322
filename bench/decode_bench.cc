// Decoding with a whole model: one stream; eight streams on the base; eight streams on eight
// adapters, alternating in one run. Counts every byte of weights that a step reads: dense layers
// and head once, each expert that the router chose once, the adapter pairs that were used; and the
// streams' keys, values and states. Usage:
// decode_bench MODEL [--threads N] [--kernels NAME] [--steps N] ADAPTER...   (as made by `lorikeet
// synth`)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <set>

#include "adapters/adapter.h"
#include "bench/arguments.h"
#include "bench/counts.h"
#include "bench/limits.h"
#include "engine/kv_plan.h"
#include "model/model.h"
#include "quant/detect.h"

namespace {

using namespace lk;
using bench::median;
using bench::stored_bytes;

constexpr int kStreams = 8, kPrompt = 64, kWarmSteps = 3;

[[noreturn]] void die(const std::string& message) {
  std::fprintf(stderr, "decode_bench: %s\n", message.c_str());
  std::exit(2);
}

// `streams` sequences that decode in step, one token each.
class Streams {
 public:
  Streams(Model& model, KvCache& cache, int streams, int first_block, int blocks_each,
          bool adapters)
      : model_(model), cache_(cache), streams_(streams), blocks_each_(blocks_each) {
    const int groups = static_cast<int>(cache.layout().groups.size());
    tables_.resize(groups);
    slots_.resize(groups);
    for (auto& table : tables_) {
      for (int i = 0; i < streams * blocks_each; ++i) table.push_back(first_block + i);
    }
    for (int s = 0; s < streams; ++s) {
      next_.push_back(17 + 31 * s);
      adapter_of_.push_back(adapters ? s : -1);
      states_.push_back(first_block / blocks_each + s);
    }
    logits_.resize(size_t(streams) * model.info().vocab);
    prefill();
  }

  // One decode step; returns seconds and the chosen experts [layers, streams, k].
  double step(std::vector<int32_t>& experts) {
    std::vector<int> counts(streams_, 1);
    return forward(counts, experts);
  }

 private:
  void prefill() {
    std::vector<int32_t> experts;
    forward(std::vector<int>(streams_, kPrompt), experts);
  }

  double forward(const std::vector<int>& counts, std::vector<int32_t>& experts) {
    std::vector<int32_t> ids, positions, adapter, sequence, query_start = {0}, context, rows;
    for (auto& s : slots_) s.clear();
    for (int s = 0; s < streams_; ++s) {
      for (int i = 0; i < counts[s]; ++i) {
        const int p = length_ + i;
        ids.push_back(counts[s] == 1 ? next_[s] : (s * 7919 + p * 104729) % model_.info().vocab);
        positions.push_back(p);
        adapter.push_back(adapter_of_[s]);
        sequence.push_back(s);
        for (size_t g = 0; g < slots_.size(); ++g) {
          slots_[g].push_back(int64_t{tables_[g][s * blocks_each_ + p / kKvBlockTokens]} *
                                  kKvBlockTokens +
                              p % kKvBlockTokens);
        }
      }
      query_start.push_back(static_cast<int>(ids.size()));
      context.push_back(length_ + counts[s]);
      rows.push_back(static_cast<int>(ids.size()) - 1);
    }
    std::vector<KvIndex> kv;
    for (size_t g = 0; g < slots_.size(); ++g)
      kv.push_back({tables_[g].data(), slots_[g].data(), blocks_each_});
    Batch batch;
    batch.tokens = static_cast<int>(ids.size());
    batch.sequences = streams_;
    batch.logit_count = streams_;
    batch.token_ids = ids.data();
    batch.positions = positions.data();
    batch.adapter = adapter.data();
    batch.sequence = sequence.data();
    batch.query_start = query_start.data();
    batch.context_len = context.data();
    batch.logit_rows = rows.data();
    batch.kv = kv;
    batch.state_slot = states_.data();
    experts.assign(size_t(model_.info().layers) * ids.size() * model_.info().top_k, 0);
    ForwardTrace trace;
    trace.experts = experts.data();
    const double start = bench::now();
    model_.forward(batch, cache_, logits_.data(), trace);
    const double seconds = bench::now() - start;
    length_ += counts[0];
    const int vocab = model_.info().vocab;
    for (int s = 0; s < streams_; ++s) {
      const float* row = &logits_[size_t(s) * vocab];
      next_[s] = static_cast<int32_t>(std::max_element(row, row + vocab) - row);
    }
    return seconds;
  }

  Model& model_;
  KvCache& cache_;
  int streams_, blocks_each_, length_ = 0;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::vector<int64_t>> slots_;
  std::vector<int32_t> next_, states_;
  std::vector<int> adapter_of_;
  std::vector<float> logits_;
};

struct ByteCount {
  double dense = 0;        // read once a step
  double expert = 0;       // one expert of one layer
  double lora_dense = 0;   // of one adapter
  double lora_expert = 0;  // of one adapter, one expert of one layer
  double state = 0;        // of one stream, read and written
  double token = 0;        // keys and values of one token of one stream
  int moe_layers = 0;
};

ByteCount count_bytes(const Model& model, const std::string& folder, const Adapter* adapter) {
  const auto checkpoint = Checkpoint::open(folder);
  if (!checkpoint) die(checkpoint.error().message);
  const auto stored = match_checkpoint(*checkpoint, model.linears());
  if (!stored) die(stored.error().message);
  ByteCount bytes;
  std::set<int> layers;
  for (const StoredLinear& linear : stored->linears) {
    const LinearSpec& spec = *linear.spec;
    if (spec.experts > 0) {
      bytes.expert += stored_bytes(linear) / spec.experts;
      layers.insert(spec.layer);
    } else if (spec.stage != Stage::kEmbedding) {
      bytes.dense += stored_bytes(linear);
    }
  }
  bytes.moe_layers = static_cast<int>(layers.size());
  bytes.expert /= bytes.moe_layers;
  bytes.state = 2.0 * static_cast<double>(model.kv_layout().state_bytes());
  bytes.token = static_cast<double>(kv_bytes_per_token(model.kv_layout()));
  if (adapter) {
    for (const AdapterModule& module : adapter->modules) {
      const double one =
          2.0 * module.max_rank() * static_cast<double>(module.spec->in + module.spec->out);
      (module.spec->experts > 0 ? bytes.lora_expert : bytes.lora_dense) += one;
    }
    bytes.lora_expert /= bytes.moe_layers;
  }
  return bytes;
}

// Bytes read in a step with these choices, and states written; each (stream, expert) pair of an
// adapter counts once.
double step_bytes(const ByteCount& bytes, const std::vector<int32_t>& experts, int streams,
                  int context, int top_k, bool adapters) {
  double total = bytes.dense + streams * (bytes.state + context * bytes.token);
  for (int l = 0; l < bytes.moe_layers; ++l) {
    const auto begin = experts.begin() + int64_t{l} * streams * top_k;
    total += bytes.expert *
             static_cast<double>(std::set<int32_t>(begin, begin + int64_t{streams} * top_k).size());
  }
  if (adapters)
    total += streams * (bytes.lora_dense + bytes.lora_expert * bytes.moe_layers * top_k);
  return total;
}

}  // namespace

int main(int argc, char** argv) {
  ModelOptions options;
  int steps = 24;
  std::string activations;
  bench::Arguments arguments("decode_bench",
                             "MODEL [--threads N] [--kernels NAME] [--moe-backend NAME] "
                             "[--activations bf16|8bit] [--steps N] ADAPTER...");
  arguments.number("--threads", options.threads, 0, bench::kMostThreads);
  arguments.text("--kernels", options.kernels);
  arguments.text("--moe-backend", options.moe.backend);
  arguments.choice("--activations", activations, {"bf16", "8bit"});
  arguments.number("--steps", steps, kWarmSteps + 1, 100'000);
  const std::vector<std::string> paths = arguments.parse(argc, argv, 1, 1 + kStreams);
  if (!activations.empty()) {
    options.moe.activations =
        activations == "8bit" ? ActivationPrecision::k8Bit : ActivationPrecision::kBF16;
  }
  const double load_start = bench::now();
  auto loaded = Model::load(paths[0], options);
  if (!loaded) die(loaded.error().message);
  Model& model = **loaded;
  const double load_seconds = bench::now() - load_start;
  std::shared_ptr<const Adapter> first;
  const int adapters = std::min<int>(kStreams, static_cast<int>(paths.size()) - 1);
  for (int a = 0; a < kStreams && adapters > 0; ++a) {
    // Fewer folders than streams: the same one again, packed anew, so that every stream reads
    // memory of its own.
    auto adapter =
        load_peft_adapter(paths[1 + a % adapters], paths[1 + a % adapters], model.linears(), {});
    if (!adapter) die(adapter.error().message);
    model.set_slot(a, model.prepare_adapter(*adapter));
    if (!first) first = *adapter;
  }
  bench::Limits limits;
  {
    ThreadPool pool(options.threads);
    limits = bench::measure_limits(pool);
  }
  const int blocks_each = (kPrompt + steps + 16) / kKvBlockTokens + 2;
  const int total_blocks = (2 * kStreams + 1) * blocks_each;
  KvCache cache(model.kv_layout(), std::vector<int>(model.kv_layout().groups.size(), total_blocks),
                2 * kStreams + 1);
  Streams one(model, cache, 1, 0, blocks_each, false);
  Streams base(model, cache, kStreams, blocks_each, blocks_each, false);
  Streams adapted(model, cache, kStreams, (1 + kStreams) * blocks_each, blocks_each, adapters > 0);

  const ByteCount bytes = count_bytes(model, paths[0], first.get());
  const int top_k = model.info().top_k;
  std::vector<double> rate[3], seconds[3], per_byte[2];
  std::vector<int32_t> experts;
  for (int i = 0; i < steps; ++i) {
    Streams* const all[3] = {&one, &base, &adapted};
    for (int kind = 0; kind < 3; ++kind) {
      const double s = all[kind]->step(experts);
      const int streams = kind == 0 ? 1 : kStreams;
      const double read =
          step_bytes(bytes, experts, streams, kPrompt + i, top_k, kind == 2 && adapters > 0);
      const double base_read = step_bytes(bytes, experts, streams, kPrompt + i, top_k, false);
      if (i < kWarmSteps) continue;
      rate[kind].push_back(read / s * 1e-9);
      seconds[kind].push_back(s);
      if (kind > 0) per_byte[kind - 1].push_back(s / base_read);
    }
  }
  std::printf("kernels %s, %d threads, loaded in %.1f s (%.2f GB packed); limit: read %.1f GB/s\n",
              std::string(model.kernels().name()).c_str(), model.kernels().threads(), load_seconds,
              static_cast<double>(model.info().weight_bytes) * 1e-9, limits.read_gb_s);
  const char* names[3] = {"1 stream, base", "8 streams, base", "8 streams, 8 adapters"};
  for (int kind = 0; kind < (adapters > 0 ? 3 : 2); ++kind) {
    const int streams = kind == 0 ? 1 : kStreams;
    std::printf("%-22s %7.2f ms a step  %7.1f tok/s  %6.1f GB/s  %5.1f%% of read bandwidth\n",
                names[kind], median(seconds[kind]) * 1e3, streams / median(seconds[kind]),
                median(rate[kind]), 100 * median(rate[kind]) / limits.read_gb_s);
  }
  if (adapters > 0) {
    // Routing differs between the two, so time for each byte of base weights is compared.
    std::printf("adapters run at %.1f%% of the base's rate\n",
                100 * median(per_byte[0]) / median(per_byte[1]));
  }
  return 0;
}
