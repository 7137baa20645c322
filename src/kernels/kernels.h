// What the model may ask of a device: the stages of a decoder layer, each with its LoRA terms
// inside. Cut at stages so that a backend may fuse whatever lies behind one. Buffers belong to the
// caller. One thread calls a Kernels object at a time.
//
// Symbols: T tokens of the step, S sequences, R rows that want logits, H hidden size, E experts, k
// experts a token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

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
};

// A linear packed for one Kernels implementation; made by Kernels::pack, used by the same
// implementation only.
class Weights {
 public:
  virtual ~Weights() = default;
  virtual size_t bytes() const = 0;

  ProductForm form;
};

// One adapter's pairs for one linear, packed; made by Kernels::pack_lora.
class LoraWeights {
 public:
  virtual ~LoraWeights() = default;
  virtual size_t bytes() const = 0;
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

struct EmbedArgs {
  Linear embedding;  // [vocab, H]
  float* residual;   // out [T, H]
};

// x = norm(residual); q, k, v = projections(x) + bias + LoRA; norms of q and k; RoPE on the first
// `rotary` dims of q and k (halves layout); k and v go to the cache, q stays.
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
};

// Causal attention over the paged cache, softmax with an optional sink: an extra logit for each
// head without a value.
struct AttentionArgs {
  const float* q;  // [T, heads * head_dim]
  KvLayer kv;
  int heads, kv_heads, head_dim;
  int window;          // keys a query sees at most, itself included; 0: all
  float scale;         // on q . k
  const float* sinks;  // [heads], not scaled; null if the layer has none
  float* out;          // [T, heads * head_dim]
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
};

enum class Activation : uint8_t {
  kClampedSwiGlu,  // gpt-oss: (clamp(up) + 1) * min(gate, limit) * sigmoid(alpha * gate)
  kSwiGlu,         // up * gate * sigmoid(gate)
};

// residual += sum over slots of weight * (down(act(up(x) + bias + LoRA)) + bias + LoRA); both LoRA
// seams read unquantized activations.
struct ExpertArgs {
  const float* x;         // [T, H]
  const int32_t* expert;  // [T, k]
  const float* weight;    // [T, k]
  int experts, top_k, intermediate;
  Linear up;    // [E, 2 * intermediate, H] in the spec's row order
  Linear down;  // [E, H, intermediate]
  Activation activation;
  float alpha, limit;  // of the clamped SwiGLU
  float* residual;     // in, out [T, H]
};

struct HeadArgs {
  const float* residual;  // [T, H]
  Norm norm;
  Linear head;    // [vocab, H]
  float* logits;  // out [R, vocab]
};

class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual std::string_view name() const = 0;
  virtual int threads() const = 0;

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
  virtual void output(const Batch& batch, const OutputArgs& args) = 0;
  virtual void route(const Batch& batch, const RouteArgs& args) = 0;
  virtual void experts(const Batch& batch, const ExpertArgs& args) = 0;
  virtual void head(const Batch& batch, const HeadArgs& args) = 0;
};

}  // namespace lk
