// What the CUDA stages take at the shapes of real models: prints microseconds and the share of what
// an H200 gives, 4.4 TB/s of memory and 790 TFLOP/s. Runs where LORIKEET_SPEED is set. Results are
// checked in stages_test.cc; here a stage only has to have run without an error.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "kernels/cuda/stages.h"
#include "tests/cuda/on_device.h"
#include "tests/kernels/op_case.h"

namespace lk::test {
namespace {

class CudaSpeed : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::getenv("LORIKEET_SPEED")) GTEST_SKIP() << "LORIKEET_SPEED is not set";
  }

  // Random values, repeated from a million of them.
  template <typename T>
  T* random(size_t bytes, bool halves) {
    constexpr size_t kPiece = 4 << 20;
    std::vector<uint8_t> piece(std::min(bytes, kPiece));
    for (size_t i = 0; i < piece.size() / (halves ? 2 : 4); ++i) {
      const float v = rng_.normal();
      const uint16_t half = f32_to_bf16(v);
      if (halves)
        std::memcpy(&piece[2 * i], &half, 2);
      else
        std::memcpy(&piece[4 * i], &v, 4);
    }
    buffers_.emplace_back(gpu(), bytes, MemoryUse::kWorkspace);
    for (size_t at = 0; at < bytes; at += piece.size())
      gpu().upload(static_cast<char*>(buffers_.back().data()) + at, piece.data(),
                   std::min(piece.size(), bytes - at));
    return buffers_.back().as<T>();
  }
  float* floats(size_t count) { return random<float>(count * 4, false); }

  // `sequences` of `count` new tokens behind `before` others.
  Batch batch(int sequences, int before, int count) {
    Owned o;
    const int blocks = (before + count + 15) / 16;
    std::vector<int32_t> slots;
    for (int s = 0; s < sequences; ++s) {
      o.query_start.push_back(s * count);
      o.context_len.push_back(before + count);
      slots.push_back(s);
      for (int i = 0; i < count; ++i) {
        o.ids.push_back(0), o.adapter.push_back(-1), o.sequence.push_back(s);
        o.positions.push_back(before + i);
        o.slots.push_back(int64_t{(s * blocks + (before + i) / 16)} * 16 + (before + i) % 16);
      }
      for (int b = 0; b < blocks; ++b) o.block_table.push_back(s * blocks + b);
    }
    o.query_start.push_back(sequences * count);
    o.finish(blocks);
    o.batch.state_slot = slots.data();
    return device_.put(o.batch);
  }

  // Median of 15 after two runs, as recordings where launches would be what is timed.
  void time(const char* what, double bytes, double flops, const std::function<void()>& run) {
    const cudaStream_t stream = gpu().stream();
    run(), run();
    cudaGraph_t graph;
    cudaGraphExec_t recording;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording");
    run();
    check_cuda(cudaStreamEndCapture(stream, &graph), "recording");
    check_cuda(cudaGraphInstantiate(&recording, graph, 0), "recording");
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    std::vector<float> times;
    for (int i = 0; i < 15; ++i) {
      cudaEventRecord(begin, stream);
      cudaGraphLaunch(recording, stream);
      cudaEventRecord(end, stream);
      check_cuda(cudaEventSynchronize(end), what);
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    const double s = times[times.size() / 2] * 1e-3;
    std::printf("%-44s %9.1f us", what, s * 1e6);
    if (bytes > 0) std::printf("  %7.1f GB/s %5.1f%%", bytes / s / 1e9, bytes / s / 4.4e12 * 100);
    if (flops > 0)
      std::printf("  %6.1f TFLOP/s %5.1f%%", flops / s / 1e12, flops / s / 790e12 * 100);
    std::printf("\n");
    EXPECT_GT(s, 0);
    cudaGraphExecDestroy(recording), cudaGraphDestroy(graph);
    cudaEventDestroy(begin), cudaEventDestroy(end);
  }

  void attention(const char* what, int sequences, int before, int count, int heads, int kv_heads,
                 int dim, int window) {
    const Batch step = batch(sequences, before, count);
    const int length = before + count;
    const size_t cache = size_t(sequences) * ((length + 15) / 16) * 16 * kv_heads * dim;
    AttentionArgs args{};
    args.q = floats(size_t(step.tokens) * heads * dim);
    args.out = floats(size_t(step.tokens) * heads * dim);
    args.kv = {random<void>(cache * 2, true), random<void>(cache * 2, true), KvType::kBF16, 0};
    args.heads = heads, args.kv_heads = kv_heads, args.head_dim = dim, args.window = window;
    args.scale = 0.125f;
    args.sinks = floats(heads);
    double pairs = 0;
    for (int i = 0; i < count; ++i)
      pairs += window > 0 ? std::min(window, before + i + 1) : before + i + 1;
    const double keys = window > 0 && count == 1 ? std::min(window, length) : length;
    time(what, count == 1 ? sequences * keys * kv_heads * dim * 4 : 0,
         count == 1 ? 0 : sequences * pairs * heads * dim * 4,
         [&] { cuda::run_attention(context_, step, args); });
    buffers_.clear();
  }

  Rng rng_{61};
  OnDevice device_;
  std::vector<DeviceBuffer> buffers_;
  cuda::Context context_{gpu()};
};

TEST_F(CudaSpeed, Attention) {
  attention("decode gpt-oss 64 x 1k", 64, 1023, 1, 64, 8, 64, 0);
  attention("decode gpt-oss 64 x 1k window 128", 64, 1023, 1, 64, 8, 64, 128);
  attention("decode gpt-oss 1 x 32k", 1, 32767, 1, 64, 8, 64, 0);
  attention("decode gpt-oss 1 x 1k", 1, 1023, 1, 64, 8, 64, 0);
  attention("decode Nemotron 64 x 1k (32/2 x 128)", 64, 1023, 1, 32, 2, 128, 0);
  attention("decode Qwen3.5 64 x 1k (16/2 x 256)", 64, 1023, 1, 16, 2, 256, 0);
  attention("prefill gpt-oss 8192", 1, 0, 8192, 64, 8, 64, 0);
  attention("prefill gpt-oss 8192 window 128", 1, 0, 8192, 64, 8, 64, 128);
  attention("prefill Nemotron 8192 (32/2 x 128)", 1, 0, 8192, 32, 2, 128, 0);
  attention("prefill Qwen3.5 8192 (16/2 x 256)", 1, 0, 8192, 16, 2, 256, 0);
}

TEST_F(CudaSpeed, Mixers) {
  for (const auto& [sequences, count] : {std::pair{64, 1}, std::pair{1, 8192}}) {
    const Batch step = batch(sequences, count == 1 ? 5 : 0, count);
    const size_t tokens = step.tokens;
    DeltaNetArgs args{};
    args.kernel = 4, args.key_heads = 16, args.key_dim = 128, args.value_heads = 32;
    args.value_dim = 128;
    args.conv = floats(4 * 8192), args.a_log = floats(32), args.dt_bias = floats(32);
    args.out_norm = {floats(128), 1e-6f};
    args.state = {floats(size_t(sequences) * 3 * 8192), floats(size_t(sequences) * 32 * 128 * 128)};
    args.out = floats(tokens * 4096);
    const float *u = floats(tokens * 8192), *z = floats(tokens * 4096), *a = floats(tokens * 32),
                *b = floats(tokens * 32);
    const double bytes = sequences * (2.0 * 32 * 128 * 128 * 4) + tokens * (8192 + 2 * 4096) * 4.0;
    time(count == 1 ? "DeltaNet decode 64" : "DeltaNet prefill 8192", bytes, 0,
         [&] { cuda::mix_delta_net(context_, step, args, u, z, a, b); });
    MambaArgs m{};
    m.kernel = 4, m.conv = args.conv, m.conv_bias = floats(6144), m.a_log = floats(64);
    m.d = floats(64), m.dt_bias = floats(64), m.out_norm = {floats(4096), 1e-5f};
    m.heads = 64, m.head_dim = 64, m.groups = 8, m.state_dim = 128, m.dt_max = INFINITY;
    m.state = args.state, m.out = args.out;
    const float* projected = floats(tokens * 10304);
    time(count == 1 ? "Mamba-2 decode 64" : "Mamba-2 prefill 8192",
         sequences * (2.0 * 64 * 128 * 64 * 4) + tokens * (10304 + 4096) * 4.0, 0,
         [&] { cuda::mix_mamba(context_, step, m, projected); });
    buffers_.clear();
  }
}

TEST_F(CudaSpeed, SmallStages) {
  for (const int tokens : {64, 8192}) {
    const Batch step = batch(tokens == 64 ? 64 : 1, 0, tokens == 64 ? 1 : tokens);
    const float* x = floats(size_t(tokens) * 2880);
    auto* out = random<__nv_bfloat16>(size_t(tokens) * 2880 * 2, true);
    const Norm norm{floats(2880), 1e-5f};
    time(tokens == 64 ? "norm 64 x 2880" : "norm 8192 x 2880", tokens * 2880 * 6.0, 0,
         [&] { cuda::run_norm(context_, x, norm, tokens, 2880, nullptr, out, nullptr); });
    QkvArgs qkv{};
    qkv.heads = 64, qkv.kv_heads = 8, qkv.head_dim = qkv.rotary = 64;
    qkv.rope_cos = floats(tokens * 32), qkv.rope_sin = floats(tokens * 32);
    qkv.q = floats(size_t(tokens) * 4096);
    const size_t cache = size_t(tokens) * 16 * 512 * 2;
    qkv.kv = {random<void>(cache, true), random<void>(cache, true), KvType::kBF16, 0};
    const float *q = floats(size_t(tokens) * 4096), *k = floats(tokens * 512),
                *v = floats(tokens * 512);
    time(tokens == 64 ? "RoPE and KV write 64" : "RoPE and KV write 8192",
         tokens * (4096 * 8 + 1024 * 6.0), 0,
         [&] { cuda::finish_qkv(context_, step, qkv, q, k, v); });
    RouteArgs route{};
    route.rule = RouterRule::kTopKThenSoftmax, route.experts = 128, route.top_k = 4;
    route.expert = random<int32_t>(tokens * 16, false), route.weight = floats(tokens * 4);
    const float* logits = floats(tokens * 128);
    time(tokens == 64 ? "choice of experts 64" : "choice of experts 8192", tokens * 128 * 4.0, 0,
         [&] { cuda::choose_experts(context_, step, route, logits); });
    buffers_.clear();
  }
  const int vocab = 201088;
  const float* logits = floats(size_t(64) * vocab);
  std::vector<RowChoice> choices;
  for (int r = 0; r < 64; ++r)
    choices.push_back(
        {.uniform = (r + 0.5) / 64, .scale = 1, .limit = vocab, .top = cuda::kMostTop});
  const auto* draw = device_.put(choices);
  for (RowChoice& choice : choices) choice.model_sum = 1;
  const auto* scored = device_.put(choices);
  auto* results = device_.put(std::vector<RowResult>(64));
  auto* best = device_.put(std::vector<TopLogit>(64 * cuda::kMostTop));
  time("draw 64 x 201,088", 64.0 * vocab * 4, 0,
       [&] { cuda::run_choice(context_, logits, 64, vocab, draw, results); });
  time("draw 64 x 201,088 with log-probabilities", 64.0 * vocab * 4, 0,
       [&] { cuda::run_choice(context_, logits, 64, vocab, scored, results); });
  time("top 128 of 64 x 201,088", 64.0 * vocab * 4, 0,
       [&] { cuda::run_top(context_, logits, 64, vocab, 128, draw, best); });
  time("top 256 of 64 x 201,088", 64.0 * vocab * 4, 0,
       [&] { cuda::run_top(context_, logits, 64, vocab, 256, draw, best); });
}

}  // namespace
}  // namespace lk::test
