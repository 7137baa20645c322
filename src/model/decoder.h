// The generic decoder: runs the stages of kernels.h in the order that a DecoderSpec gives. Owned by
// one engine thread; prepare_adapter may run beside it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/device_buffer.h"
#include "model/decoder_spec.h"
#include "model/device_batch.h"
#include "model/lora.h"
#include "model/model.h"

namespace lk {

// Shape of the KV cache of `spec`: layers with the same window share a group; groups in order of
// first use. And of the states of its recurrent layers.
KvLayout make_kv_layout(const DecoderSpec& spec, KvType type);

// Everything loaded that a decoder is made of.
struct DecoderParts {
  ModelInfo info;
  DecoderSpec spec;
  std::unique_ptr<const LinearTable> table;
  std::unique_ptr<Kernels> kernels;
  std::vector<std::unique_ptr<Weights>> weights;  // by index in table->linears
  std::map<std::string, DeviceBuffer> plain;      // float32, by name
  bool keeps_views = false;                       // some weights are views of the checkpoint
  std::optional<Checkpoint> checkpoint;           // kept where they are
};

class Decoder : public Model {
 public:
  Decoder(DecoderParts parts, KvType kv_type, int adapter_slots);

  const ModelInfo& info() const override { return parts_.info; }
  const LinearTable& linears() const override { return *parts_.table; }
  const Kernels& kernels() const override { return *parts_.kernels; }
  const KvLayout& kv_layout() const override { return kv_layout_; }
  std::shared_ptr<const PreparedAdapter> prepare_adapter(
      std::shared_ptr<const Adapter> adapter) const override;
  void set_slot(int slot, std::shared_ptr<const PreparedAdapter> adapter) override;
  Device& device() const override { return parts_.kernels->device(); }
  int most_step_tokens() const override { return parts_.kernels->most_tokens(); }
  void forward(const Batch& batch, KvCache& cache, float* logits,
               const ForwardTrace& trace) override;
  bool chooses() const override { return parts_.kernels->chooses(); }
  void forward_and_choose(const Batch& batch, KvCache& cache, const StepOutput& output) override;
  int most_top() const override { return parts_.kernels->most_top(parts_.spec.vocab); }
  void read_row(int row, float* logits) override;

 private:
  struct Attention {
    const AttentionSpec* spec;
    Norm norm, query_norm, key_norm;
    Linear query, key, value, out;
    const float* sinks;  // null if there are none
  };
  struct DeltaNet {
    const DeltaNetSpec* spec;
    Norm norm, out_norm;
    Linear qkv, z, a, b, out;
    const float *conv, *a_log, *dt_bias;  // conv: [kernel, channels]
  };
  struct Mamba {
    const MambaSpec* spec;
    Norm norm, out_norm;
    Linear in, out;
    const float *conv, *conv_bias, *a_log, *d, *dt_bias;  // conv: [kernel, channels]
  };
  struct Moe {
    const MoeSpec* spec;
    Norm norm;
    Linear router, up, down;
    const float* correction;                     // null: none
    Linear latent_in, latent_out;                // weights null: none
    Linear shared_up, shared_down, shared_gate;  // the same
  };
  struct Layer {
    std::optional<Attention> attention;
    std::optional<DeltaNet> delta_net;
    std::optional<Mamba> mamba;
    std::optional<Moe> moe;
  };

  void bind_layers();
  Attention bind(const AttentionSpec& spec, int layer) const;
  DeltaNet bind(const DeltaNetSpec& spec, int layer) const;
  Mamba bind(const MambaSpec& spec, int layer) const;
  Moe bind(const MoeSpec& spec, int layer) const;
  const float* plain(const std::string& name) const;  // null for an empty name
  Norm norm(const std::string& name) const;
  Linear linear(Stage stage, int layer) const;
  void check_batch(const Batch& batch) const;
  void reserve(const Batch& batch);
  void run(const Batch& batch, KvCache& cache, const ForwardTrace& trace);
  // On the device: logits to `logits_to_`. False: the batch is empty.
  bool compute(const Batch& host, KvCache& cache, const ForwardTrace& trace);
  // Adds the mixer's output linear of `mixed_` to the residual stream.
  void project_mixed(const Batch& batch, const Linear& out);
  void attend(const Batch& batch, const Attention& layer, KvLayer kv);
  void recur(const Batch& batch, const DeltaNet& layer, StateLayer state);
  void recur(const Batch& batch, const Mamba& layer, StateLayer state);
  void mix_experts(const Batch& batch, const Moe& layer, int32_t* chosen, const int32_t* forced);
  void apply_experts(const Batch& batch, const Moe& layer);
  void apply_shared_expert(const Batch& batch, const Moe& layer);

  DecoderParts parts_;
  LoraSlots lora_;
  KvLayout kv_layout_;
  Linear embedding_, head_;
  Norm final_norm_;
  std::vector<Layer> layers_;

  DeviceBatch batch_;

  // Scratch of one step; grows to the largest step seen.
  DeviceBuffer residual_;           // [T, hidden]
  DeviceBuffer q_, gate_;           // [T, heads * head_dim] of the widest layer
  DeviceBuffer mixed_;              // [T, what the widest mixer gives to its output linear]
  DeviceBuffer x_;                  // [T, hidden]
  DeviceBuffer expert_, weight_;    // [T, k] of the layer with most
  DeviceBuffer latent_x_, latent_;  // [T, latent] of the layer with the widest
  DeviceBuffer forced_;             // [T, k]: ForwardTrace's
  DeviceBuffer logits_;             // [R, vocab], where the host cannot read the device's memory
  DeviceBuffer choices_;            // [R]
  DeviceBuffer told_;               // [R] RowResult, then [R, top] TopLogit
  std::vector<std::byte> landed_;   // the same on the host
  float* logits_to_ = nullptr;      // logits_, or the caller's
};

}  // namespace lk
