#include "model/decoder.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lk {

KvLayout make_kv_layout(const DecoderSpec& spec, KvType type) {
  KvLayout layout;
  layout.type = type;
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.attention) continue;
    const AttentionSpec& attention = *layer.attention;
    if (layout.layer_group.empty()) {
      layout.kv_heads = attention.kv_heads;
      layout.head_dim = attention.head_dim;
    }
    LK_CHECK(attention.kv_heads == layout.kv_heads && attention.head_dim == layout.head_dim);
    const auto group = std::find_if(layout.groups.begin(), layout.groups.end(),
                                    [&](const KvGroup& g) { return g.window == attention.window; });
    const int index = static_cast<int>(group - layout.groups.begin());
    if (group == layout.groups.end())
      layout.groups.push_back({.window = attention.window, .layers = {}});
    layout.groups[index].layers.push_back(static_cast<int>(layout.layer_group.size()));
    layout.layer_group.push_back(index);
  }
  for (const LayerSpec& layer : spec.layers) {
    if (layer.delta_net) {
      const DeltaNetSpec& net = *layer.delta_net;
      layout.states.push_back({.conv = int64_t{net.kernel - 1} * net.channels(),
                               .state = int64_t{net.value_heads} * net.key_dim * net.value_dim});
    }
    if (layer.mamba) {
      const MambaSpec& mamba = *layer.mamba;
      layout.states.push_back({.conv = int64_t{mamba.kernel - 1} * mamba.channels(),
                               .state = int64_t{mamba.heads} * mamba.state_dim * mamba.head_dim});
    }
  }
  return layout;
}

Decoder::Decoder(DecoderParts parts, KvType kv_type, int adapter_slots)
    : parts_(std::move(parts)),
      lora_(parts_.table->linears.size(), adapter_slots),
      kv_layout_(make_kv_layout(parts_.spec, kv_type)) {
  bind_layers();
}

std::shared_ptr<const PreparedAdapter> Decoder::prepare_adapter(
    std::shared_ptr<const Adapter> adapter) const {
  return std::make_shared<PreparedAdapter>(*adapter, *parts_.table, *parts_.kernels);
}

void Decoder::set_slot(int slot, std::shared_ptr<const PreparedAdapter> adapter) {
  lora_.set(slot, std::move(adapter));
}

void Decoder::check_batch(const Batch& batch) const {
  LK_CHECK(batch.kv.size() == kv_layout_.groups.size());
  LK_CHECK(kv_layout_.states.empty() || batch.state_slot);
  for (int t = 0; t < batch.tokens; ++t) {
    LK_CHECK(batch.token_ids[t] >= 0 && batch.token_ids[t] < parts_.spec.vocab);
    LK_CHECK(batch.positions[t] >= 0 && batch.positions[t] < parts_.spec.max_positions);
    const int slot = batch.adapter[t];
    LK_CHECK(slot == -1 || (slot >= 0 && slot < lora_.slots() && lora_.filled(slot)));
  }
}

void Decoder::reserve(const Batch& batch) {
  size_t q_width = 0, gate_width = 0, mixed_width = 0, top_k = 0, latent = 0;
  const auto widen = [](size_t& width, int64_t at_least) {
    width = std::max(width, static_cast<size_t>(at_least));
  };
  for (const LayerSpec& layer : parts_.spec.layers) {
    if (layer.attention) {
      const int64_t width = int64_t{layer.attention->heads} * layer.attention->head_dim;
      widen(q_width, width);
      widen(mixed_width, width);
      if (layer.attention->gated) widen(gate_width, width);
    }
    if (layer.delta_net)
      widen(mixed_width, int64_t{layer.delta_net->value_heads} * layer.delta_net->value_dim);
    if (layer.mamba) widen(mixed_width, layer.mamba->inner());
    if (layer.moe) {
      widen(top_k, layer.moe->top_k);
      widen(latent, layer.moe->latent);
    }
  }
  const auto rows_of = [&batch](size_t width, auto&... buffers) {
    static_assert(sizeof(float) == sizeof(int32_t));
    (buffers.reserve(batch.tokens * width * sizeof(float)), ...);
  };
  rows_of(parts_.spec.hidden, residual_, x_);
  rows_of(parts_.spec.rope.inv_freq.size(), rope_cos_, rope_sin_);
  rows_of(q_width, q_);
  rows_of(gate_width, gate_);
  rows_of(mixed_width, mixed_);
  rows_of(top_k, expert_, weight_);
  rows_of(latent, latent_x_, latent_);
}

void Decoder::forward(const Batch& batch, KvCache& cache, float* logits,
                      const ForwardTrace& trace) {
  if (batch.tokens == 0) return;
  check_batch(batch);
  reserve(batch);
  parts_.spec.rope.angles({batch.positions, static_cast<size_t>(batch.tokens)},
                          rope_cos_.as<float>(), rope_sin_.as<float>());

  Kernels& kernels = *parts_.kernels;
  kernels.embed(batch, {.embedding = embedding_, .residual = residual_.as<float>()});
  int attention_layer = 0, recurrent_layer = 0;
  size_t traced = 0;  // experts of the MoE layers before this one
  for (const Layer& layer : layers_) {
    if (layer.attention) attend(batch, *layer.attention, cache.layer(attention_layer++));
    if (layer.delta_net) recur(batch, *layer.delta_net, cache.state(recurrent_layer++));
    if (layer.mamba) recur(batch, *layer.mamba, cache.state(recurrent_layer++));
    if (layer.moe) {
      mix_experts(batch, *layer.moe, trace.experts ? trace.experts + traced : nullptr,
                  trace.forced_experts ? trace.forced_experts + traced : nullptr);
      traced += static_cast<size_t>(batch.tokens) * layer.moe->spec->top_k;
    }
  }
  if (batch.logit_count == 0) return;
  kernels.head(
      batch,
      {.residual = residual_.as<float>(), .norm = final_norm_, .head = head_, .logits = logits});
}

}  // namespace lk
