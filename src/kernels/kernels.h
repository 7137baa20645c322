// What the model may ask of a device: the stages of a decoder layer, each with its LoRA terms
// inside. Cut at stages so that a backend may fuse whatever lies behind one. Buffers belong to the
// caller. One thread calls a Kernels object at a time.
//
// Symbols: T tokens of the step, S sequences, R rows that want logits, H hidden size, E experts, k
// experts a token.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "backend/device.h"
#include "kernels/product_form.h"
#include "quant/stored_linear.h"

namespace lk {

// Tokens that share one KV block.
inline constexpr int kKvBlockTokens = 16;

// Where the keys and values of one group of layers lie (layers with the same window share a group).
struct KvIndex {
  const int32_t* block_table =
      nullptr;  // [S, max_blocks] block of tokens [16 i, 16 i + 16); -1 where the window has passed
  const int64_t* slot_mapping = nullptr;  // [T] block * 16 + offset to write token t to
  int max_blocks = 0;
};

// One step's tokens, flat. Prefill and decode differ only in query_start.
struct Batch {
  int tokens = 0;                        // T
  int sequences = 0;                     // S
  int logit_count = 0;                   // R
  const int32_t* token_ids = nullptr;    // [T]
  const int32_t* positions = nullptr;    // [T]
  const int32_t* adapter = nullptr;      // [T] adapter slot, -1 for none
  const int32_t* sequence = nullptr;     // [T] index of the token's sequence in this batch
  const int32_t* query_start = nullptr;  // [S + 1]
  const int32_t* context_len = nullptr;  // [S] keys in the cache after this step
  const int32_t* logit_rows = nullptr;   // [R] tokens whose logits are wanted
  std::span<const KvIndex> kv;           // by KV group
  const int32_t* state_slot = nullptr;   // [S] where recurrent layers keep the sequence's state

  // What the host knows of the arrays, wherever they lie. A device without host memory reads no
  // array on the host: these bound its launches.
  int longest_query = 0;    // most tokens of one sequence in this step
  int longest_context = 0;  // at least the largest context_len
  bool adapters = true;     // some token may have one
  // Such a device may get padding behind the step's own tokens and sequences, so that batches of
  // like sizes are one recording: padding tokens have sequence -1, adapter -1 and slot_mapping -1
  // (nothing is written), padding sequences context_len 0 and state_slot -1. Any value may come
  // out for padding, but it must not be read for others, and no expert is computed for it.
};

// A linear packed for one Kernels implementation; made by Kernels::pack, used by the same
// implementation only.
class Weights {
 public:
  virtual ~Weights() = default;
  virtual size_t bytes() const = 0;

  ProductForm form;
  int64_t out = 0, in = 0;  // of one expert's matrix; the reference looks them up elsewhere
};

// One adapter's pairs for one linear, packed; made by Kernels::pack_lora.
class LoraWeights {
 public:
  virtual ~LoraWeights() = default;
  virtual size_t bytes() const = 0;
  // What a table of pairs on the device holds of it; null on a device with host memory.
  virtual const void* device_address() const { return nullptr; }
  // Of all its pairs; known where there is a device_address.
  virtual int max_rank() const { return 0; }
};

// A pair as the adapters room holds it: delta = scale * B (A x), bfloat16. The embedding,
// a lookup, takes the token's row of it: scale * B[token] A.
struct LoraSource {
  int rank = 0;  // 0: this expert is not adapted
  float scale = 0;
  const uint16_t* a = nullptr;  // [rank, in]
  const uint16_t* b = nullptr;  // [out, rank]
};

// A linear with the adapters that may be added to it.
struct Linear {
  const Weights* weights = nullptr;
  std::span<const LoraWeights* const>
      lora;  // by adapter slot; null where that adapter leaves this linear alone
  // [slots] the pairs' device_address(), in the memory of a device without host memory: what a
  // recording reads, so that adapters may change behind it. Null elsewhere.
  const void* const* device_lora = nullptr;
};

struct Norm {
  const float* weight = nullptr;  // [H]
  float eps = 0;
};

enum class KvType : uint8_t { kBF16, kF32 };

// Keys are stored transposed within a block, so that a dot product runs over 16 tokens at once.
struct KvLayer {
  void* keys = nullptr;    // [blocks, kv_heads, head_dim, 16]
  void* values = nullptr;  // [blocks, kv_heads, 16, head_dim]
  KvType type = KvType::kBF16;
  int group = 0;  // index into Batch::kv
};

// What a recurrent layer keeps of each sequence between steps, float32. A sequence whose first
// token of the step stands at position 0 starts from zeros, whatever its slot holds.
struct StateLayer {
  float* conv = nullptr;   // [slots, kernel - 1, channels] the convolution's last inputs, in order
  float* state = nullptr;  // [slots, heads, key_dim, value_dim]
};

struct EmbedArgs {
  Linear embedding;  // [vocab, H]
  float* residual;   // out [T, H]
};

// x = norm(residual); q, k, v = projections(x) + bias + LoRA; norms of q and k; RoPE on the first
// `rotary` dims of q and k (halves layout); k and v go to the cache, q stays. Where there is a
// gate, `query` holds twice the rows: for each head its q, then its gate, which is left as it is.
struct QkvArgs {
  const float* residual;  // [T, H]
  Norm norm;
  Linear query, key, value;
  int heads, kv_heads, head_dim, rotary;
  const float* rope_cos;  // [T, rotary / 2], concentration included
  const float* rope_sin;  // [T, rotary / 2]
  float* q;               // out [T, heads * head_dim]
  KvLayer kv;
  Norm query_norm, key_norm;  // weight null: none; [head_dim], or of all heads where norm_whole
  bool norm_whole = false;    // one norm over all heads (OLMoE), not one for each (Qwen3)
  float clip = 0;             // q, k and v are clamped to +-clip after the norms; 0: they are not
  float* gate = nullptr;      // out [T, heads * head_dim]; null: `query` has none
};

// Causal attention over the paged cache, softmax with an optional sink: an extra logit for each
// head without a value.
struct AttentionArgs {
  const float* q;  // [T, heads * head_dim]
  KvLayer kv;
  int heads, kv_heads, head_dim;
  int window;                   // keys a query sees at most, itself included; 0: all
  float scale;                  // on q . k
  const float* sinks;           // [heads], not scaled; null if the layer has none
  float* out;                   // [T, heads * head_dim]
  const float* gate = nullptr;  // [T, heads * head_dim] out is multiplied by its sigmoid; null: not
};

// x = norm(residual); u = qkv(x), z, a, b likewise (all + LoRA). A causal convolution over the last
// `kernel` tokens and SiLU make of u the q and k of `key_heads` and the v of `value_heads`; value
// head h uses key head h / (value_heads / key_heads). In float32 for each value head, with
// q and k scaled to length 1 (x / sqrt(sum x^2 + 1e-6)), q also by key_dim^-1/2:
//   S = exp(-exp(a_log) softplus(a + dt_bias)) S;  d = sigmoid(b) (v - S^T k);  S += k d^T;
//   out = norm(S^T q) * silu(z), the norm over one head
// Gated DeltaNet (arXiv 2412.06464) as Qwen3.5 has it. Bits do not depend on where a prompt is cut.
struct DeltaNetArgs {
  const float* residual;  // [T, H]
  Norm norm;
  Linear qkv;            // [2 * key_heads * key_dim + value_heads * value_dim, H]: q, k, v
  Linear z;              // [value_heads * value_dim, H]
  Linear a, b;           // [value_heads, H]
  int kernel;            // tokens that the convolution sees
  const float* conv;     // [kernel, channels], the last row is that of the token itself
  const float* a_log;    // [value_heads]
  const float* dt_bias;  // [value_heads]
  Norm out_norm;         // [value_dim]
  int key_heads, key_dim, value_heads, value_dim;
  StateLayer state;
  float* out;  // [T, value_heads * value_dim]
};

// x = norm(residual); z, xBC, dt = in(x) + LoRA; xBC = silu(convolution(xBC) + conv_bias), split
// into x of `heads`, B and C of `groups`; head h uses group h / (heads / groups). In float32 for
// each head:
//   dt = clamp(softplus(dt + dt_bias), dt_min, dt_max);  S = exp(-exp(a_log) dt) S + B (dt x)^T;
//   y = S^T C + d x;  out = norm(y * silu(z)), the norm over the heads of one group
// Mamba-2 (arXiv 2405.21060). Bits do not depend on where a prompt is cut.
struct MambaArgs {
  const float* residual;  // [T, H]
  Norm norm;
  Linear in;          // [2 * inner + 2 * groups * state_dim + heads, H], inner = heads * head_dim
  int kernel;         // tokens that the convolution sees
  const float* conv;  // [kernel, channels], the last row is that of the token itself
  const float* conv_bias;  // [channels]; null: none
  const float* a_log;      // [heads]
  const float* d;          // [heads]
  const float* dt_bias;    // [heads]
  Norm out_norm;           // [inner]
  int heads, head_dim, groups, state_dim;
  float dt_min, dt_max;  // infinity: no bound
  StateLayer state;      // key_dim is state_dim, value_dim is head_dim
  float* out;            // [T, inner]
};

// out = linear(x) + bias + LoRA.
struct ProjectArgs {
  const float* x;  // [T, in]
  Linear linear;   // [out, in]
  float* out;      // [T, out]
};

struct OutputArgs {
  const float* x;   // [T, in]
  Linear linear;    // [H, in]
  float* residual;  // in, out [T, H]: += linear(x) + bias + LoRA
};

enum class RouterRule : uint8_t {
  kTopKThenSoftmax,  // k largest logits, softmax over them; the same as softmax over all, divided
                     // by the sum of the chosen ones
  kSoftmaxThenTopK,  // softmax over all, the k largest as they are (OLMoE)
  kSigmoidThenTopK,  // sigmoid of each; the choice is RouterChoice's (DeepSeek-V3, Nemotron)
};

// What kSigmoidThenTopK needs: the k best by score + correction, among the experts of the
// `top_groups` groups whose two best sum to most; weights are the scores, divided by their sum
// (+ 1e-20) if `normalized`, times `scale`.
struct RouterChoice {
  const float* correction = nullptr;  // [E]; null: 0
  int groups = 1, top_groups = 1;     // groups divides E
  bool normalized = true;
  float scale = 1;
};

// x = norm(residual); logits = router(x) + bias + LoRA; the k experts of each token, best first
// (ties: lower index).
struct RouteArgs {
  const float* residual;  // [T, H]
  Norm norm;
  Linear router;  // [E, H]
  RouterRule rule;
  int experts, top_k;
  const int32_t* forced;  // [T, k] use these experts (weights from their logits) in place of the
                          // best; null: choose
  float* x;               // out [T, H] the normed activations
  int32_t* expert;        // out [T, k]
  float* weight;          // out [T, k]
  RouterChoice choice{};
};

enum class Activation : uint8_t {
  kClampedSwiGlu,  // gpt-oss: (clamp(up) + 1) * min(gate, limit) * sigmoid(alpha * gate)
  kSwiGlu,         // up * gate * sigmoid(gate)
  kRelu2,          // max(up, 0)^2, without a gate
};
constexpr bool is_gated(Activation activation) { return activation != Activation::kRelu2; }

// residual += sum over slots of weight * (down(act(up(x) + bias + LoRA)) + bias + LoRA); both LoRA
// seams read unquantized activations.
struct ExpertArgs {
  const float* x;         // [T, H]
  const int32_t* expert;  // [T, k]
  const float* weight;    // [T, k]
  int experts, top_k, intermediate;
  Linear up;    // [E, 2 * intermediate, H] in the spec's row order; [E, intermediate, H] ungated
  Linear down;  // [E, H, intermediate]
  Activation activation;
  float alpha, limit;  // of the clamped SwiGLU
  float* residual;     // in, out [T, H]
};

// residual += sigmoid(gate(x)) * (down(act(up(x) + LoRA)) + LoRA): an expert that every token
// takes.
struct SharedExpertArgs {
  const float* x;  // [T, H]
  Linear up;       // [2 * intermediate, H] in the spec's row order; [intermediate, H] ungated
  Linear down;     // [H, intermediate]
  Linear gate;     // [1, H]; weights null: none, the factor is 1
  int intermediate;
  Activation activation;  // kSwiGlu or kRelu2
  float* residual;        // in, out [T, H]
};

struct HeadArgs {
  const float* residual;  // [T, H]
  Norm norm;
  Linear head;    // [vocab, H]
  float* logits;  // out [R, vocab]
};

// How a row of logits becomes a token where the device chooses: the largest (scale 0), or one draw
// from softmax(scale * logits), as engine/sampler.h has it; and what else is to be told of the row,
// for a choice or log-probabilities that the host makes of it.
struct RowChoice {
  double uniform = 0;     // in [0, 1)
  float scale = 0;        // 1 / temperature; 0: the largest
  int32_t limit = 0;      // ids from here on are never chosen
  int32_t top = 0;        // so many of the largest logits, at most ChooseArgs::top
  int32_t model_sum = 0;  // 1: RowResult::model_sum, too
};

struct RowResult {
  int32_t token = -1;    // -1 where the largest logit below the limit is not finite
  float logit = 0;       // the token's; from here on undefined where there is none
  float largest = 0;     // of the ids below the limit
  double sum = 0;        // of exp(scale * (logit - largest)) over them, where scale > 0
  double model_sum = 0;  // of exp(logit - largest) over all ids, where it is asked for
};
// Relative: how far `sum` may lie from the one of engine/row_exp.h.
inline constexpr double kRowSumError = 2e-6;

struct TopLogit {
  int32_t id = -1;  // -1: the row has no more that are numbers above -infinity
  float logit = 0;
};

struct ChooseArgs {
  const float* logits;  // [R, vocab]
  int rows, vocab;
  const RowChoice* choices;  // [R]
  int top;                   // at least that of each choice, at most most_top(vocab); 0: none
  RowResult* results;        // out [R]
  TopLogit* best;            // out [R, top] by falling logit, then rising id; ids below the limit
};

class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual std::string_view name() const = 0;
  virtual int threads() const = 0;
  // Where all pointers of batches and arguments point to, but for the structures themselves.
  virtual Device& device() const { return host_device(); }
  // Of one batch, at most.
  virtual int most_tokens() const { return std::numeric_limits<int>::max(); }

  // Errors are thrown (std::bad_alloc): they happen while loading. `form` is that of the row of
  // moe_backends chosen for an expert linear, the default one elsewhere; both linears of an expert
  // layer have the same. `linear`'s views must outlive the Weights of forms that keep them
  // (keeps_views); others copy, and drop the mapped pages that they have read when `drop` says so.
  virtual std::unique_ptr<Weights> pack(const StoredLinear& linear, const ProductForm& form,
                                        bool drop) = 0;
  virtual bool keeps_views(const ProductForm& form) const = 0;
  // `experts` holds one source for each expert (one for a dense linear). Thread-safe: adapters load
  // beside the engine.
  virtual std::unique_ptr<LoraWeights> pack_lora(const LinearSpec& spec,
                                                 std::span<const LoraSource> experts) const = 0;

  virtual void embed(const Batch& batch, const EmbedArgs& args) = 0;
  virtual void qkv(const Batch& batch, const QkvArgs& args) = 0;
  virtual void attention(const Batch& batch, const AttentionArgs& args) = 0;
  virtual void delta_net(const Batch& batch, const DeltaNetArgs& args) = 0;
  virtual void mamba(const Batch& batch, const MambaArgs& args) = 0;
  virtual void project(const Batch& batch, const ProjectArgs& args) = 0;
  virtual void output(const Batch& batch, const OutputArgs& args) = 0;
  virtual void route(const Batch& batch, const RouteArgs& args) = 0;
  virtual void experts(const Batch& batch, const ExpertArgs& args) = 0;
  virtual void shared_expert(const Batch& batch, const SharedExpertArgs& args) = 0;
  virtual void head(const Batch& batch, const HeadArgs& args) = 0;
  // Does this device choose tokens? Elsewhere the host reads the logits anyway.
  virtual bool chooses() const { return false; }
  virtual void choose(const ChooseArgs&) {}
  virtual int most_top(int /*vocab*/) const { return 0; }  // ChooseArgs::top at most
};

}  // namespace lk
