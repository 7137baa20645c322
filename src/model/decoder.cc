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
  return layout;
}

Decoder::Decoder(DecoderParts parts, KvType kv_type, int adapter_slots)
    : parts_(std::move(parts)),
      lora_(parts_.table->linears.size(), adapter_slots),
      kv_layout_(make_kv_layout(parts_.spec, kv_type)) {
  embedding_ = linear(Stage::kEmbedding, -1);
  head_ = linear(Stage::kHead, -1);
  final_norm_ = norm(parts_.spec.final_norm);
  for (size_t i = 0; i < parts_.spec.layers.size(); ++i) {
    const LayerSpec& spec = parts_.spec.layers[i];
    const int index = static_cast<int>(i);
    Layer& layer = layers_.emplace_back();
    if (spec.attention) {
      const std::string& sinks = spec.attention->sinks;
      layer.attention = {.spec = &*spec.attention,
                         .norm = norm(spec.attention->norm),
                         .query_norm = norm(spec.attention->query_norm),
                         .key_norm = norm(spec.attention->key_norm),
                         .query = linear(Stage::kQuery, index),
                         .key = linear(Stage::kKey, index),
                         .value = linear(Stage::kValue, index),
                         .out = linear(Stage::kAttentionOut, index),
                         .sinks = sinks.empty() ? nullptr : parts_.plain.at(sinks).data()};
    }
    if (spec.moe) {
      layer.moe = {.spec = &*spec.moe,
                   .norm = norm(spec.moe->norm),
                   .router = linear(Stage::kRouter, index),
                   .up = linear(Stage::kExpertUp, index),
                   .down = linear(Stage::kExpertDown, index)};
    }
  }
}

Norm Decoder::norm(const std::string& name) const {
  if (name.empty()) return {};
  return {.weight = parts_.plain.at(name).data(), .eps = parts_.spec.norm_eps};
}

Linear Decoder::linear(Stage stage, int layer) const {
  const LinearSpec* spec = parts_.table->find(stage, layer);
  LK_CHECK(spec != nullptr);
  const size_t index = spec - parts_.table->linears.data();
  return {.weights = parts_.weights[index].get(), .lora = lora_.linear(index)};
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
  for (int t = 0; t < batch.tokens; ++t) {
    LK_CHECK(batch.token_ids[t] >= 0 && batch.token_ids[t] < parts_.spec.vocab);
    LK_CHECK(batch.positions[t] >= 0 && batch.positions[t] < parts_.spec.max_positions);
    const int slot = batch.adapter[t];
    LK_CHECK(slot == -1 || (slot >= 0 && slot < lora_.slots() && lora_.filled(slot)));
  }
}

void Decoder::reserve(const Batch& batch) {
  size_t q_width = 0, top_k = 0;
  for (const LayerSpec& layer : parts_.spec.layers) {
    if (layer.attention) {
      q_width = std::max<size_t>(q_width, layer.attention->heads * layer.attention->head_dim);
    }
    if (layer.moe) top_k = std::max<size_t>(top_k, layer.moe->top_k);
  }
  const auto rows_of = [&batch](size_t width, auto&... buffers) {
    static_assert(sizeof(float) == sizeof(int32_t));
    (buffers.reserve(batch.tokens * width * sizeof(float)), ...);
  };
  rows_of(parts_.spec.hidden, residual_, x_);
  rows_of(parts_.spec.rope.inv_freq.size(), rope_cos_, rope_sin_);
  rows_of(q_width, q_, attended_);
  rows_of(top_k, expert_, weight_);
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
  int attention_layer = 0;
  size_t traced = 0;  // experts of the MoE layers before this one
  for (const Layer& layer : layers_) {
    if (layer.attention) attend(batch, *layer.attention, cache.layer(attention_layer++));
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

void Decoder::attend(const Batch& batch, const Attention& layer, KvLayer kv) {
  Kernels& kernels = *parts_.kernels;
  const AttentionSpec& spec = *layer.spec;
  kernels.qkv(batch, {.residual = residual_.as<float>(),
                      .norm = layer.norm,
                      .query = layer.query,
                      .key = layer.key,
                      .value = layer.value,
                      .heads = spec.heads,
                      .kv_heads = spec.kv_heads,
                      .head_dim = spec.head_dim,
                      .rotary = parts_.spec.rope.rotary(),
                      .rope_cos = rope_cos_.as<float>(),
                      .rope_sin = rope_sin_.as<float>(),
                      .q = q_.as<float>(),
                      .kv = kv,
                      .query_norm = layer.query_norm,
                      .key_norm = layer.key_norm,
                      .norm_whole = spec.norm_whole,
                      .clip = spec.clip});
  kernels.attention(batch, {.q = q_.as<float>(),
                            .kv = kv,
                            .heads = spec.heads,
                            .kv_heads = spec.kv_heads,
                            .head_dim = spec.head_dim,
                            .window = spec.window,
                            .scale = spec.scale,
                            .sinks = layer.sinks,
                            .out = attended_.as<float>()});
  kernels.output(
      batch, {.x = attended_.as<float>(), .linear = layer.out, .residual = residual_.as<float>()});
}

void Decoder::mix_experts(const Batch& batch, const Moe& layer, int32_t* chosen,
                          const int32_t* forced) {
  Kernels& kernels = *parts_.kernels;
  const MoeSpec& spec = *layer.spec;
  kernels.route(batch, {.residual = residual_.as<float>(),
                        .norm = layer.norm,
                        .router = layer.router,
                        .rule = spec.rule,
                        .experts = spec.experts,
                        .top_k = spec.top_k,
                        .forced = forced,
                        .x = x_.as<float>(),
                        .expert = expert_.as<int32_t>(),
                        .weight = weight_.as<float>()});
  if (chosen) {
    std::memcpy(chosen, expert_.data(), sizeof(int32_t) * batch.tokens * spec.top_k);
  }
  kernels.experts(batch, {.x = x_.as<float>(),
                          .expert = expert_.as<int32_t>(),
                          .weight = weight_.as<float>(),
                          .experts = spec.experts,
                          .top_k = spec.top_k,
                          .intermediate = spec.intermediate,
                          .up = layer.up,
                          .down = layer.down,
                          .activation = spec.activation,
                          .alpha = spec.alpha,
                          .limit = spec.limit,
                          .residual = residual_.as<float>()});
}

}  // namespace lk
