// How a decoder's layers map onto the stages of kernels.h.
#include "base/check.h"
#include "model/decoder.h"

namespace lk {
const float* Decoder::plain(const std::string& name) const {
  return name.empty() ? nullptr : parts_.plain.at(name).as<float>();
}

Norm Decoder::norm(const std::string& name) const {
  return {.weight = plain(name), .eps = name.empty() ? 0 : parts_.spec.norm_eps};
}

Linear Decoder::linear(Stage stage, int layer) const {
  const LinearSpec* spec = parts_.table->find(stage, layer);
  LK_CHECK(spec != nullptr);
  const size_t index = spec - parts_.table->linears.data();
  return {.weights = parts_.weights[index].get(),
          .lora = lora_.linear(index),
          .device_lora = lora_.device_linear(index)};
}

void Decoder::bind_layers() {
  embedding_ = linear(Stage::kEmbedding, -1);
  head_ = linear(Stage::kHead, -1);
  final_norm_ = norm(parts_.spec.final_norm);
  for (size_t i = 0; i < parts_.spec.layers.size(); ++i) {
    const LayerSpec& spec = parts_.spec.layers[i];
    const int index = static_cast<int>(i);
    Layer& layer = layers_.emplace_back();
    if (spec.attention) layer.attention = bind(*spec.attention, index);
    if (spec.delta_net) layer.delta_net = bind(*spec.delta_net, index);
    if (spec.mamba) layer.mamba = bind(*spec.mamba, index);
    if (spec.moe) layer.moe = bind(*spec.moe, index);
  }
}

Decoder::Attention Decoder::bind(const AttentionSpec& spec, int layer) const {
  return {.spec = &spec,
          .norm = norm(spec.norm),
          .query_norm = norm(spec.query_norm),
          .key_norm = norm(spec.key_norm),
          .query = linear(Stage::kQuery, layer),
          .key = linear(Stage::kKey, layer),
          .value = linear(Stage::kValue, layer),
          .out = linear(Stage::kAttentionOut, layer),
          .sinks = plain(spec.sinks)};
}

Decoder::DeltaNet Decoder::bind(const DeltaNetSpec& spec, int layer) const {
  return {.spec = &spec,
          .norm = norm(spec.norm),
          .out_norm = norm(spec.out_norm),
          .qkv = linear(Stage::kRecurrentIn, layer),
          .z = linear(Stage::kRecurrentGate, layer),
          .a = linear(Stage::kRecurrentDecay, layer),
          .b = linear(Stage::kRecurrentBeta, layer),
          .out = linear(Stage::kRecurrentOut, layer),
          .conv = plain(spec.conv),
          .a_log = plain(spec.a_log),
          .dt_bias = plain(spec.dt_bias)};
}

Decoder::Mamba Decoder::bind(const MambaSpec& spec, int layer) const {
  return {.spec = &spec,
          .norm = norm(spec.norm),
          .out_norm = norm(spec.out_norm),
          .in = linear(Stage::kRecurrentIn, layer),
          .out = linear(Stage::kRecurrentOut, layer),
          .conv = plain(spec.conv),
          .conv_bias = plain(spec.conv_bias),
          .a_log = plain(spec.a_log),
          .d = plain(spec.d),
          .dt_bias = plain(spec.dt_bias)};
}

Decoder::Moe Decoder::bind(const MoeSpec& spec, int layer) const {
  Moe moe{.spec = &spec,
          .norm = norm(spec.norm),
          .router = linear(Stage::kRouter, layer),
          .up = linear(Stage::kExpertUp, layer),
          .down = linear(Stage::kExpertDown, layer),
          .correction = plain(spec.correction),
          .latent_in = {},
          .latent_out = {},
          .shared_up = {},
          .shared_down = {},
          .shared_gate = {}};
  if (spec.latent > 0) {
    moe.latent_in = linear(Stage::kLatentIn, layer);
    moe.latent_out = linear(Stage::kLatentOut, layer);
  }
  if (spec.shared) {
    moe.shared_up = linear(Stage::kSharedUp, layer);
    moe.shared_down = linear(Stage::kSharedDown, layer);
    if (spec.shared->gated_output) moe.shared_gate = linear(Stage::kSharedGate, layer);
  }
  return moe;
}

void Decoder::project_mixed(const Batch& batch, const Linear& out) {
  parts_.kernels->output(
      batch, {.x = mixed_.as<float>(), .linear = out, .residual = residual_.as<float>()});
}

void Decoder::attend(const Batch& batch, const Attention& layer, KvLayer kv) {
  Kernels& kernels = *parts_.kernels;
  const AttentionSpec& spec = *layer.spec;
  float* gate = spec.gated ? gate_.as<float>() : nullptr;
  kernels.qkv(batch, {.residual = residual_.as<float>(),
                      .norm = layer.norm,
                      .query = layer.query,
                      .key = layer.key,
                      .value = layer.value,
                      .heads = spec.heads,
                      .kv_heads = spec.kv_heads,
                      .head_dim = spec.head_dim,
                      .rotary = parts_.spec.rope.rotary(),
                      .rope_cos = batch_.rope_cos(),
                      .rope_sin = batch_.rope_sin(),
                      .q = q_.as<float>(),
                      .kv = kv,
                      .query_norm = layer.query_norm,
                      .key_norm = layer.key_norm,
                      .norm_whole = spec.norm_whole,
                      .clip = spec.clip,
                      .gate = gate});
  kernels.attention(batch, {.q = q_.as<float>(),
                            .kv = kv,
                            .heads = spec.heads,
                            .kv_heads = spec.kv_heads,
                            .head_dim = spec.head_dim,
                            .window = spec.window,
                            .scale = spec.scale,
                            .sinks = layer.sinks,
                            .out = mixed_.as<float>(),
                            .gate = gate});
  project_mixed(batch, layer.out);
}

void Decoder::recur(const Batch& batch, const DeltaNet& layer, StateLayer state) {
  const DeltaNetSpec& spec = *layer.spec;
  parts_.kernels->delta_net(batch, {.residual = residual_.as<float>(),
                                    .norm = layer.norm,
                                    .qkv = layer.qkv,
                                    .z = layer.z,
                                    .a = layer.a,
                                    .b = layer.b,
                                    .kernel = spec.kernel,
                                    .conv = layer.conv,
                                    .a_log = layer.a_log,
                                    .dt_bias = layer.dt_bias,
                                    .out_norm = layer.out_norm,
                                    .key_heads = spec.key_heads,
                                    .key_dim = spec.key_dim,
                                    .value_heads = spec.value_heads,
                                    .value_dim = spec.value_dim,
                                    .state = state,
                                    .out = mixed_.as<float>()});
  project_mixed(batch, layer.out);
}

void Decoder::recur(const Batch& batch, const Mamba& layer, StateLayer state) {
  const MambaSpec& spec = *layer.spec;
  parts_.kernels->mamba(batch, {.residual = residual_.as<float>(),
                                .norm = layer.norm,
                                .in = layer.in,
                                .kernel = spec.kernel,
                                .conv = layer.conv,
                                .conv_bias = layer.conv_bias,
                                .a_log = layer.a_log,
                                .d = layer.d,
                                .dt_bias = layer.dt_bias,
                                .out_norm = layer.out_norm,
                                .heads = spec.heads,
                                .head_dim = spec.head_dim,
                                .groups = spec.groups,
                                .state_dim = spec.state_dim,
                                .dt_min = spec.dt_min,
                                .dt_max = spec.dt_max,
                                .state = state,
                                .out = mixed_.as<float>()});
  project_mixed(batch, layer.out);
}

void Decoder::mix_experts(const Batch& batch, const Moe& layer, int32_t* chosen,
                          const int32_t* forced) {
  const MoeSpec& spec = *layer.spec;
  const size_t bytes = sizeof(int32_t) * batch.tokens * spec.top_k;
  if (forced) {
    forced_.reserve(device(), bytes);
    device().upload(forced_.data(), forced, bytes);
  }
  parts_.kernels->route(batch, {.residual = residual_.as<float>(),
                                .norm = layer.norm,
                                .router = layer.router,
                                .rule = spec.rule,
                                .experts = spec.experts,
                                .top_k = spec.top_k,
                                .forced = forced ? forced_.as<int32_t>() : nullptr,
                                .x = x_.as<float>(),
                                .expert = expert_.as<int32_t>(),
                                .weight = weight_.as<float>(),
                                .choice = {.correction = layer.correction,
                                           .groups = spec.groups,
                                           .top_groups = spec.top_groups,
                                           .normalized = spec.normalized,
                                           .scale = spec.weight_scale}});
  if (chosen) device().download(chosen, expert_.data(), bytes);
  apply_experts(batch, layer);
  if (spec.shared) apply_shared_expert(batch, layer);
}

// Through the latent space where there is one: the sum over experts is taken there.
void Decoder::apply_experts(const Batch& batch, const Moe& layer) {
  Kernels& kernels = *parts_.kernels;
  const MoeSpec& spec = *layer.spec;
  const bool latent = spec.latent > 0;
  if (latent) {
    kernels.project(batch,
                    {.x = x_.as<float>(), .linear = layer.latent_in, .out = latent_x_.as<float>()});
    device().clear(latent_.data(), sizeof(float) * batch.tokens * spec.latent);
  }
  kernels.experts(batch, {.x = latent ? latent_x_.as<float>() : x_.as<float>(),
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
                          .residual = latent ? latent_.as<float>() : residual_.as<float>()});
  if (latent) {
    kernels.output(
        batch,
        {.x = latent_.as<float>(), .linear = layer.latent_out, .residual = residual_.as<float>()});
  }
}

void Decoder::apply_shared_expert(const Batch& batch, const Moe& layer) {
  parts_.kernels->shared_expert(batch, {.x = x_.as<float>(),
                                        .up = layer.shared_up,
                                        .down = layer.shared_down,
                                        .gate = layer.shared_gate,
                                        .intermediate = layer.spec->shared->intermediate,
                                        .activation = layer.spec->activation,
                                        .residual = residual_.as<float>()});
}

}  // namespace lk
