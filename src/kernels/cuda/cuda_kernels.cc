// How the stages of kernels.h are made of launches: norm, products, what follows them.
#include "kernels/cuda/cuda_kernels.h"

#include <algorithm>
#include <thread>

#include "kernels/cuda/linears.h"
#include "kernels/cuda/stages.h"

namespace lk {
namespace {

using cuda::Scratch;

int64_t rows_of(const Linear& linear) { return linear.weights->out; }

class CudaKernels : public Kernels {
 public:
  explicit CudaKernels(CudaDevice& device) : context_(device) {}

  std::string_view name() const override { return "cuda"; }
  int threads() const override {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  Device& device() const override { return context_.device(); }
  int most_tokens() const override { return 65'535; }  // a grid's second dimension

  std::unique_ptr<Weights> pack(const StoredLinear& linear, const ProductForm& form,
                                bool drop) override {
    auto weights = cuda::pack_weights(context_.device(), linear, form, drop);
    weights->form = form;
    weights->out = linear.spec->out;
    weights->in = linear.spec->in;
    return weights;
  }
  bool keeps_views(const ProductForm&) const override { return false; }
  std::unique_ptr<LoraWeights> pack_lora(const LinearSpec& spec,
                                         std::span<const LoraSource> experts) const override {
    return cuda::pack_pairs(context_.device(), spec, experts);
  }

  void embed(const Batch& batch, const EmbedArgs& args) override {
    cuda::run_embedding(context_, batch, args);
  }

  void qkv(const Batch& batch, const QkvArgs& args) override {
    const int64_t heads = int64_t{args.heads} * args.head_dim * (args.gate ? 2 : 1);
    const int64_t kv_heads = int64_t{args.kv_heads} * args.head_dim;
    const auto* x = normed(batch, args.residual, args.norm, args.query);
    float* query = projected(batch, heads + 2 * kv_heads);
    float* key = query + batch.tokens * heads;
    float* value = key + batch.tokens * kv_heads;
    project(batch, args.query, x, query, heads);
    project(batch, args.key, x, key, kv_heads);
    project(batch, args.value, x, value, kv_heads);
    cuda::finish_qkv(context_, batch, args, query, key, value);
  }

  void attention(const Batch& batch, const AttentionArgs& args) override {
    cuda::run_attention(context_, batch, args);
  }

  void delta_net(const Batch& batch, const DeltaNetArgs& args) override {
    const auto* x = normed(batch, args.residual, args.norm, args.qkv);
    const int64_t inner = int64_t{args.value_heads} * args.value_dim;
    const int64_t channels = 2 * int64_t{args.key_heads} * args.key_dim + inner;
    float* u = projected(batch, channels + inner + 2 * args.value_heads);
    float* z = u + batch.tokens * channels;
    float* a = z + batch.tokens * inner;
    float* b = a + int64_t{batch.tokens} * args.value_heads;
    project(batch, args.qkv, x, u, channels);
    project(batch, args.z, x, z, inner);
    project(batch, args.a, x, a, args.value_heads);
    project(batch, args.b, x, b, args.value_heads);
    cuda::mix_delta_net(context_, batch, args, u, z, a, b);
  }

  void mamba(const Batch& batch, const MambaArgs& args) override {
    const auto* x = normed(batch, args.residual, args.norm, args.in);
    const int64_t width = 2 * int64_t{args.heads} * args.head_dim +
                          2 * int64_t{args.groups} * args.state_dim + args.heads;
    float* all = projected(batch, width);
    project(batch, args.in, x, all, width);
    cuda::mix_mamba(context_, batch, args, all);
  }

  void project(const Batch& batch, const ProjectArgs& args) override {
    cuda::run_linear(
        context_, batch, args.linear,
        {.x = args.x, .rows = batch.tokens, .out = args.out, .out_stride = rows_of(args.linear)});
  }

  void output(const Batch& batch, const OutputArgs& args) override {
    cuda::run_linear(context_, batch, args.linear,
                     {.x = args.x,
                      .rows = batch.tokens,
                      .out = args.residual,
                      .out_stride = rows_of(args.linear),
                      .add = true});
  }

  void route(const Batch& batch, const RouteArgs& args) override {
    auto* x =
        context_.scratch<__nv_bfloat16>(Scratch::kNormed, batch.tokens * args.router.weights->in);
    cuda::run_norm(context_, args.residual, args.norm, batch.tokens,
                   static_cast<int>(args.router.weights->in), nullptr, x, args.x);
    float* logits = projected(batch, args.experts);
    // The choice hangs on it: from float32.
    cuda::run_linear(
        context_, batch, args.router,
        {.x = args.x, .rows = batch.tokens, .out = logits, .out_stride = args.experts});
    cuda::choose_experts(context_, batch, args, logits);
  }

  void experts(const Batch& batch, const ExpertArgs& args) override {
    cuda::run_experts(context_, batch, args);
  }

  void shared_expert(const Batch& batch, const SharedExpertArgs& args) override {
    cuda::run_shared_expert(context_, batch, args);
  }

  void head(const Batch& batch, const HeadArgs& args) override {
    const auto hidden = static_cast<int>(args.head.weights->in);
    const Batch rows = logit_rows(batch, args.head);
    auto* x = context_.scratch<__nv_bfloat16>(Scratch::kNormed, int64_t{rows.tokens} * hidden);
    cuda::run_norm(context_, args.residual, args.norm, rows.tokens, hidden, batch.logit_rows, x,
                   nullptr);
    project(rows, args.head, x, args.logits, rows_of(args.head));
  }

  bool chooses() const override { return true; }
  void choose(const ChooseArgs& args) override {
    cuda::run_choice(context_, args.logits, args.rows, args.vocab, args.choices, args.results);
    cuda::run_top(context_, args.logits, args.rows, args.vocab, args.top, args.choices, args.best);
  }
  int most_top(int vocab) const override { return cuda::most_top(vocab); }

 private:
  const __nv_bfloat16* normed(const Batch& batch, const float* residual, const Norm& norm,
                              const Linear& first) {
    const auto width = static_cast<int>(first.weights->in);
    auto* x = context_.scratch<__nv_bfloat16>(Scratch::kNormed, int64_t{batch.tokens} * width);
    cuda::run_norm(context_, residual, norm, batch.tokens, width, nullptr, x, nullptr);
    return x;
  }
  // The rows that want logits as the tokens of a batch for `head`.
  Batch logit_rows(const Batch& batch, const Linear& head) {
    Batch rows = batch;
    rows.tokens = batch.logit_count;
    rows.adapters =
        batch.adapters && std::any_of(head.lora.begin(), head.lora.end(),
                                      [](const auto* pairs) { return pairs != nullptr; });
    if (!rows.adapters) return rows;
    auto* slots = context_.scratch<int32_t>(Scratch::kRowAdapters, rows.tokens);
    cuda::run_gather(context_, batch.adapter, batch.logit_rows, rows.tokens, slots);
    rows.adapter = slots;
    return rows;
  }
  float* projected(const Batch& batch, int64_t width) {
    return context_.scratch<float>(Scratch::kProjected, batch.tokens * width);
  }
  void project(const Batch& batch, const Linear& linear, const __nv_bfloat16* x, float* out,
               int64_t width) {
    cuda::run_linear(context_, batch, linear,
                     {.x = x,
                      .type = cuda::InputType::kBF16,
                      .rows = batch.tokens,
                      .out = out,
                      .out_stride = width});
  }

  mutable cuda::Context context_;
};

}  // namespace

std::unique_ptr<Kernels> make_cuda_kernels(CudaDevice& device) {
  return std::make_unique<CudaKernels>(device);
}

}  // namespace lk
