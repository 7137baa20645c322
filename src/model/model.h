// A loaded model: packed weights, the adapters in its slots, and one forward pass over a mixed
// batch. Owned by one engine thread; `prepare_adapter` may run on other threads beside it.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "base/result.h"
#include "cache/kv_cache.h"
#include "checkpoint/checkpoint.h"
#include "kernels/kernels.h"
#include "kernels/moe_backends.h"

namespace lk {

// What the choice of the experts' backends follows from, beside the layers themselves.
struct MoeOptions {
  std::string backend;  // row of moe_backends(); empty or "auto": the cheapest
  std::optional<ActivationPrecision> activations;
  bool lora = true;  // adapters may come
  int max_rank = 0;
};

struct ModelOptions {
  MoeOptions moe;
  std::string device = "cpu";  // or cuda, cuda:N, auto (kernels/devices.h)
  std::string kernels;         // row of kernels_table(); empty: LORIKEET_KERNELS or the best
  int threads = 0;             // 0: all CPUs of the process
  KvType kv_type = KvType::kBF16;
  int adapter_slots = 16;                                   // distinct adapters in one batch
  std::function<void(size_t done, size_t total)> progress;  // bytes of weights packed; may be empty
};

struct ModelInfo {
  std::string architecture;  // "gpt_oss"
  int layers = 0, hidden = 0, vocab = 0;
  int max_positions = 0;
  int experts = 0, top_k = 0;
  std::vector<int32_t> eos_token_ids;
  std::string device, device_reason;  // "cuda:0", and why
  bool device_among = false;          // chosen among several (kernels/devices.h)
  size_t weight_bytes = 0;            // as packed
  uint64_t content_hash = 0;          // of tensors and configuration as the checkpoint has them
  std::vector<std::string> warnings;
  std::vector<std::string> moe_plan;  // a line for each layer group: backend and reasons
};

// What a test or a tool may watch or fix in a forward pass; all pointers may be null.
struct ForwardTrace {
  int32_t* experts = nullptr;               // out [moe layers, T, k]: the experts chosen
  const int32_t* forced_experts = nullptr;  // in [moe layers, T, k]: use these
};

// What a step that chooses tokens gives: of each row of logits what its choice asks for, or the
// logits.
struct StepOutput {
  std::span<const RowChoice> choices;  // [R]
  std::span<const uint8_t> chosen;     // [R] 1: the choice of the row is wanted; 0: its logits
  int top = 0;                         // the largest of the choices' `top`
  float* logits = nullptr;             // out [R, vocab]
  RowResult* results = nullptr;        // out [R]
  TopLogit* best = nullptr;            // out [R, top]
};

// An adapter packed for this model's kernels; shared by pointer, immutable.
class PreparedAdapter;

class Model {
 public:
  // Loads every weight whole or not at all. Errors: one sentence (exit code 2).
  static Result<std::unique_ptr<Model>> load(const std::string& folder,
                                             const ModelOptions& options);
  virtual ~Model() = default;

  virtual const ModelInfo& info() const = 0;
  virtual const LinearTable& linears() const = 0;
  virtual const Kernels& kernels() const = 0;
  // Shape of the KV cache that forward() needs.
  virtual const KvLayout& kv_layout() const = 0;

  // Packs an adapter (thread-safe, slow part), then binds it to a slot (engine thread, between
  // steps; null empties the slot).
  virtual std::shared_ptr<const PreparedAdapter> prepare_adapter(
      std::shared_ptr<const Adapter> adapter) const = 0;
  virtual void set_slot(int slot, std::shared_ptr<const PreparedAdapter> adapter) = 0;

  // Where it computes.
  virtual Device& device() const { return host_device(); }
  virtual int most_step_tokens() const { return std::numeric_limits<int>::max(); }

  // One step: writes keys and values of the batch's tokens to `cache` and logits
  // [batch.logit_count, vocab]. The arrays of `batch` and the logits lie on the host.
  virtual void forward(const Batch& batch, KvCache& cache, float* logits,
                       const ForwardTrace& trace = {}) = 0;
  // The same where tokens can be chosen beside the logits, which then need not travel.
  virtual bool chooses() const { return false; }
  virtual void forward_and_choose(const Batch& batch, KvCache& cache, const StepOutput& output) {
    forward(batch, cache, output.logits);
  }
  virtual int most_top() const { return 0; }  // StepOutput::top at most
  // The logits [vocab] of a row of the last step after all: its choice was not enough.
  virtual void read_row(int /*row*/, float* /*logits*/) {}
};

}  // namespace lk
