// The first layers of the published models, at full size and with random weights, on the GPU and on
// the CPU: what the small models are too small for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "model/archs.h"
#include "model/synth.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/cuda/on_device.h"
#include "tests/model/harness.h"

namespace lk::test {
namespace {

struct FirstLayers {
  std::string preset;
  int layers;
};

class FullSize : public testing::TestWithParam<FirstLayers> {
 protected:
  // The checkpoint and two adapters on every kind of linear that may have one.
  Fixture make() {
    const std::string folder = folder_.path() + "/model";
    const auto made =
        synthesize_checkpoint(folder, {.preset = GetParam().preset, .layers = GetParam().layers});
    EXPECT_TRUE(made) << made.error().message;
    const auto checkpoint = Checkpoint::open(folder);
    const auto row = find_arch(checkpoint->config().model_type());
    const auto table = (*row)->table(checkpoint->config());
    for (const uint64_t seed : {1, 2}) {
      const auto adapter =
          synthesize_adapter(folder_.path() + "/a" + std::to_string(seed), *table,
                             {.rank = 16, .targets = {"all"}, .seed = seed, .model = folder});
      EXPECT_TRUE(adapter) << adapter.error().message;
    }
    return {folder, {"a1", "a2"}, folder_.path()};
  }

 private:
  TempFolder folder_;
};

double deviation_of(const SequenceRun& a, const SequenceRun& b, int vocab,
                    std::vector<double>& all) {
  double largest = 0;
  for (size_t row = 0; row < a.logits.size() / vocab; ++row) {
    const auto x = log_softmax(a.logits.data() + row * vocab, vocab);
    const auto y = log_softmax(b.logits.data() + row * vocab, vocab);
    for (int i = 0; i < vocab; ++i) {
      all.push_back(std::abs(x[i] - y[i]));
      largest = std::max(largest, all.back());
    }
  }
  return largest;
}

TEST_P(FullSize, FirstLayersAgreeWithTheCpu) {
  const Fixture fixture = make();
  constexpr int kTokens = 40;
  std::vector<Sequence> sequences;
  std::mt19937 random(3);
  for (const int slot : {-1, 0, 1}) {
    sequences.push_back({std::vector<int32_t>(kTokens), slot});
    for (int32_t& token : sequences.back().tokens) token = static_cast<int32_t>(random() % 250);
  }
  int vocab = 0;
  const auto run_on = [&](const std::string& kernels, const RunOptions& options) {
    const auto model = load_model({.kernels = kernels, .kv_type = KvType::kBF16}, fixture);
    vocab = static_cast<int>(model->info().vocab);
    bind_all(*model, fixture);
    return run(*model, sequences, options);
  };
  const auto cpu = run_on(fast_rows().front(), {.seed = 3, .steps = 2});
  const auto gpu = run_on("cuda", {.seed = 4, .steps = 3, .forced = &cpu});
  std::vector<double> all;
  double largest = 0;
  for (size_t i = 0; i < cpu.size(); ++i)
    largest = std::max(largest, deviation_of(cpu[i], gpu[i], vocab, all));
  double sum = 0;
  for (const double value : all) sum += value;
  const double mean = sum / static_cast<double>(all.size());
  std::printf("%s, %d layers, %zu log-probabilities, experts replayed: mean %.5f, largest %.4f\n",
              GetParam().preset.c_str(), GetParam().layers, all.size(), mean, largest);
  EXPECT_LE(mean, 0.01);
  EXPECT_LE(largest, 0.25);
  // It sees an adapter that is mixed up with another: swapped, the same prompts are far off.
  std::vector<double> swapped;
  std::swap(sequences[1].slot, sequences[2].slot);
  const auto wrong = run_on("cuda", {.seed = 4, .forced = &cpu});
  deviation_of(cpu[1], wrong[1], vocab, swapped);
  sum = 0;
  for (const double value : swapped) sum += value;
  EXPECT_GT(sum / static_cast<double>(swapped.size()), 5 * mean);
}

INSTANTIATE_TEST_SUITE_P(Published, FullSize,
                         testing::Values(FirstLayers{"gpt-oss-20b", 2},
                                         // Their fourth and sixth are the first with attention.
                                         FirstLayers{"qwen3.6-35b-a3b-fp8", 4},
                                         FirstLayers{"nemotron-3-nano-30b-a3b-nvfp4", 6}),
                         [](const auto& info) {
                           std::string name = info.param.preset;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](unsigned char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace lk::test
