// Full-size recurrent layers alone, norm to residual: Gated DeltaNet as in Qwen3.6-35B-A3B (FP8 in
// 128 x 128 blocks) and Mamba-2 as in Nemotron-3-Nano (NVFP4). Prefill of 512 tokens against the
// arithmetic peak, with the share of what is no projection (convolution, scan, norms, gates: the
// same layer from 32 hidden channels); decoding against read bandwidth, weights and states counted
// once. Layers in rotation, so that no cache holds their weights; whatever is compared alternates.
// Usage: recurrent_bench [threads] [kernels or ""] [rounds] [cpu: one thread by its CPU time]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string_view>
#include <tuple>

#include "bench/arguments.h"
#include "bench/limits.h"
#include "kernels/select.h"
#include "quant/formats.h"

namespace {

using namespace lk;

struct Shape {
  const char* name;
  bool mamba;
  const Format* format;
  int64_t hidden;
  int key_heads, key_dim, heads, value_dim, kernel = 4;
  int64_t keys() const { return int64_t{key_heads} * key_dim; }
  int64_t width() const { return int64_t{heads} * value_dim; }
  int64_t channels() const { return 2 * keys() + width(); }
  int64_t state_floats() const { return width() * key_dim; }
  // Multiply-adds of one token: projections, and the recurrence (delta rule, update, read-out).
  double products() const {
    const int64_t rows = channels() + width() + (mamba ? 1 : 2) * heads;
    return static_cast<double>(rows * hidden + width() * hidden);
  }
  double recurrence() const { return (mamba ? 2.0 : 3.0) * static_cast<double>(state_floats()); }
};

// A linear of random codes and the memory behind it.
struct RandomLinear {
  LinearSpec spec;
  std::unique_ptr<Weights> weights;
  int64_t bytes = 0;  // in the file

  RandomLinear(Kernels& kernels, const Format& format, int64_t out, int64_t in,
               std::mt19937_64& random) {
    spec.stage = Stage::kRecurrentIn;
    spec.out = out;
    spec.in = in;
    StoredMatrix m;
    m.rows = out;
    m.cols = in;
    m.row_bytes = code_bytes(format.element, in);
    // Numbers in every format: bfloat16 of the order 1/100, E4M3 up to 2.
    const bool wide = format.element == Element::kBF16;
    const uint64_t keep = wide ? 0x807f807f807f807f : 0xbfbfbfbfbfbfbfbf;
    const uint64_t set = wide ? 0x3c003c003c003c00 : 0;
    std::vector<uint64_t> codes((out * m.row_bytes + 7) / 8);
    for (uint64_t& c : codes) c = (random() & keep) | set;
    const int64_t scales = matrix_scales(format, out, in);
    std::vector<float> floats(scales, 0.01f);
    std::vector<uint8_t> small(scales, 0x38);
    const bool byte_scales = format.scale == ScaleCodec::kE4M3;
    m.codes = reinterpret_cast<const std::byte*>(codes.data());
    m.scales = byte_scales ? reinterpret_cast<const std::byte*>(small.data())
                           : reinterpret_cast<const std::byte*>(floats.data());
    m.scale_dtype = byte_scales ? DType::kU8 : DType::kF32;
    m.tensor_scale = 0.01f;
    bytes = out * m.row_bytes + scales * static_cast<int64_t>(dtype_size(m.scale_dtype));
    StoredLinear stored;
    stored.spec = &spec;
    stored.format = &format;
    stored.experts.push_back({m});
    weights = kernels.pack(stored, {}, false);
  }
  Linear linear() const { return {weights.get(), {}}; }
};

struct Layer {
  std::vector<std::unique_ptr<RandomLinear>> in;
  std::unique_ptr<RandomLinear> out;
  std::vector<float> conv_state, state;
  int64_t bytes = 0;  // of the weights

  Layer(Kernels& kernels, const Shape& s, int sequences, std::mt19937_64& random)
      : conv_state(sequences * (s.kernel - 1) * s.channels(), 0.01f),
        state(sequences * s.state_floats(), 0.01f) {
    auto add = [&](const Format& format, int64_t rows) {
      in.push_back(std::make_unique<RandomLinear>(kernels, format, rows, s.hidden, random));
      bytes += in.back()->bytes;
    };
    if (s.mamba) {
      add(*s.format, s.width() + s.channels() + s.heads);
    } else {
      add(*s.format, s.channels());
      add(*s.format, s.width());
      add(kFormatBF16, s.heads);
      add(kFormatBF16, s.heads);
    }
    out = std::make_unique<RandomLinear>(kernels, *s.format, s.hidden, s.width(), random);
    bytes += out->bytes;
  }
};

// `sequences` of `tokens` each at positions from `position` on.
struct Work {
  std::vector<int32_t> positions, adapter, sequence, start, slot;
  Batch batch;
  Work(int sequences, int tokens, int position) {
    for (int s = 0; s < sequences; ++s) {
      start.push_back(s * tokens);
      slot.push_back(s);
      for (int t = 0; t < tokens; ++t) {
        positions.push_back(position + t);
        adapter.push_back(-1);
        sequence.push_back(s);
      }
    }
    start.push_back(sequences * tokens);
    batch.tokens = sequences * tokens;
    batch.sequences = sequences;
    batch.positions = positions.data();
    batch.adapter = adapter.data();
    batch.sequence = sequence.data();
    batch.query_start = start.data();
    batch.state_slot = slot.data();
  }
};

class Bench {
 public:
  Bench(Kernels& kernels, const Shape& shape, int layers, int sequences)
      : kernels_(kernels),
        shape_(shape),
        norm_(std::max(shape.hidden, shape.width()), 1.0f),
        conv_(shape.kernel * shape.channels(), 0.25f),
        rates_(shape.heads, -1.0f),
        start_(kMaxTokens * shape.hidden),
        residual_(start_.size()),
        mixed_(kMaxTokens * shape.width()) {
    std::mt19937_64 random(1);
    for (int i = 0; i < layers; ++i) layers_.emplace_back(kernels, shape, sequences, random);
    for (float& v : start_) v = static_cast<float>(int(random() % 2001) - 1000) / 500;
  }
  static constexpr int kMaxTokens = 512;
  int64_t weight_bytes() const { return layers_.front().bytes; }

  // Seconds of one layer, the next in rotation.
  double run(const Work& work) {
    Layer& layer = layers_[next_++ % layers_.size()];
    std::copy(start_.begin(), start_.end(), residual_.begin());
    const Norm norm{norm_.data(), 1e-6f};
    const StateLayer state{layer.conv_state.data(), layer.state.data()};
    const double begin = bench::now();
    if (shape_.mamba) {
      kernels_.mamba(work.batch, {.residual = residual_.data(),
                                  .norm = norm,
                                  .in = layer.in[0]->linear(),
                                  .kernel = shape_.kernel,
                                  .conv = conv_.data(),
                                  .conv_bias = nullptr,
                                  .a_log = rates_.data(),
                                  .d = rates_.data(),
                                  .dt_bias = rates_.data(),
                                  .out_norm = norm,
                                  .heads = shape_.heads,
                                  .head_dim = shape_.value_dim,
                                  .groups = shape_.key_heads,
                                  .state_dim = shape_.key_dim,
                                  .dt_min = 0,
                                  .dt_max = 1e30f,
                                  .state = state,
                                  .out = mixed_.data()});
    } else {
      kernels_.delta_net(work.batch, {.residual = residual_.data(),
                                      .norm = norm,
                                      .qkv = layer.in[0]->linear(),
                                      .z = layer.in[1]->linear(),
                                      .a = layer.in[2]->linear(),
                                      .b = layer.in[3]->linear(),
                                      .kernel = shape_.kernel,
                                      .conv = conv_.data(),
                                      .a_log = rates_.data(),
                                      .dt_bias = rates_.data(),
                                      .out_norm = norm,
                                      .key_heads = shape_.key_heads,
                                      .key_dim = shape_.key_dim,
                                      .value_heads = shape_.heads,
                                      .value_dim = shape_.value_dim,
                                      .state = state,
                                      .out = mixed_.data()});
    }
    kernels_.output(work.batch, {mixed_.data(), layer.out->linear(), residual_.data()});
    return bench::now() - begin;
  }

 private:
  Kernels& kernels_;
  Shape shape_;
  std::vector<float> norm_, conv_, rates_, start_, residual_, mixed_;
  std::vector<Layer> layers_;
  size_t next_ = 0;
};

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

double best(const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }

void measure(Kernels& kernels, const Shape& shape, const bench::Limits& limits, int rounds) {
  constexpr int kStreams = 16;
  const int layers = 1 + static_cast<int>(6e8 / shape.products());
  Bench whole(kernels, shape, layers, kStreams);
  Shape narrow = shape;
  narrow.hidden = 32;
  Bench bare(kernels, narrow, 1, 1);
  const Work prefill(1, Bench::kMaxTokens, 0), one(1, 1, 100), many(kStreams, 1, 100);
  std::vector<double> layer, rest, step, steps;
  for (int i = -1; i < rounds; ++i) {
    const double t[] = {whole.run(prefill), bare.run(prefill)};
    for (int j = 0; j < 3 && i >= 0; ++j) {
      step.push_back(whole.run(one));
      steps.push_back(whole.run(many));
    }
    if (i < 0) continue;  // pages and caches are cold
    layer.push_back(t[0]);
    rest.push_back(t[1]);
  }
  // On a machine with other guests the best of the rounds is nearest to what the code can do.
  const double flops = 2 * Bench::kMaxTokens * (shape.products() + shape.recurrence());
  for (const auto& [how, whole_s, rest_s] :
       {std::tuple{"median", median(layer), median(rest)}, {"best", best(layer), best(rest)}}) {
    std::printf(
        "%-19s %-6s prefill %7.1f ms, %6.1f GFLOP/s (%.1f%% of peak); without projections "
        "%.1f ms (%.1f%% of the layer)\n",
        shape.name, how, 1e3 * whole_s, flops / whole_s * 1e-9,
        100 * flops / whole_s * 1e-9 / limits.peak_gflop_s(), 1e3 * rest_s, 100 * rest_s / whole_s);
  }
  const double state_bytes = 4.0 * static_cast<double>(shape.state_floats());
  for (const auto& [how, streams, seconds] : {std::tuple{"median", 1, median(step)},
                                              {"best", 1, best(step)},
                                              {"median", kStreams, median(steps)},
                                              {"best", kStreams, best(steps)}}) {
    const double gb = (static_cast<double>(whole.weight_bytes()) + streams * state_bytes) * 1e-9;
    std::printf(
        "%-19s %-6s decode of %-2d %7.2f ms, %5.1f GB/s (%.1f%% of read bandwidth), "
        "weights %.1f MB, states %.1f MB\n",
        shape.name, how, streams, 1e3 * seconds, gb / seconds,
        100 * gb / seconds / limits.read_gb_s, 1e-6 * static_cast<double>(whole.weight_bytes()),
        1e-6 * streams * state_bytes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments("recurrent_bench", "[THREADS] [KERNELS or \"\"] [ROUNDS] [cpu]");
  std::vector<std::string> words = arguments.parse(argc, argv, 0, 4);
  const std::string defaults[] = {"0", "", "9", ""};
  for (size_t i = words.size(); i < 4; ++i) words.push_back(defaults[i]);
  const int threads = arguments.as_number("THREADS", words[0], 0, bench::kMostThreads);
  auto made = make_kernels(words[1], threads);
  if (!made) {
    std::fprintf(stderr, "recurrent_bench: %s\n", made.error().message.c_str());
    return 2;
  }
  const int rounds = arguments.as_number("ROUNDS", words[2], 1, 100'000);
  const bool cpu_time = words[3] == "cpu";
  if (!cpu_time && !words[3].empty()) arguments.die("the clock is " + words[3] + ", expected cpu");
  if (cpu_time && threads != 1) arguments.die("CPU time is that of one thread");
  if (cpu_time) bench::use_thread_clock();
  Kernels& kernels = **made;
  bench::Limits limits;
  {
    ThreadPool pool(threads);
    limits = bench::measure_limits(pool);
  }
  std::printf(
      "kernels %s, %d threads; limits: read %.1f GB/s, f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s\n",
      std::string(kernels.name()).c_str(), kernels.threads(), limits.read_gb_s, limits.fma_gflop_s,
      limits.bf16_gflop_s);
  measure(kernels, {"Qwen3.6 DeltaNet", false, &kFormatFp8Block, 2048, 16, 128, 32, 128}, limits,
          rounds);
  measure(kernels, {"Nemotron-3 Mamba-2", true, &kFormatNvfp4, 2688, 8, 128, 64, 64}, limits,
          rounds);
  return 0;
}
