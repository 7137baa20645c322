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
      lora_(parts_.table->linears.size(), adapter_slots, device()),
      kv_layout_(make_kv_layout(parts_.spec, kv_type)),
      batch_(device()) {
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
  const auto rows_of = [&batch, this](size_t width, auto&... buffers) {
    static_assert(sizeof(float) == sizeof(int32_t));
    (buffers.reserve(device(), batch.tokens * width * sizeof(float)), ...);
  };
  rows_of(parts_.spec.hidden, residual_, x_);
  if (!device().is_host()) {
    const size_t rows = std::max(1, batch.logit_count);
    logits_.reserve(device(), rows * parts_.spec.vocab * sizeof(float));
    logits_to_ = logits_.as<float>();
  }
  rows_of(q_width, q_);
  rows_of(gate_width, gate_);
  rows_of(mixed_width, mixed_);
  rows_of(top_k, expert_, weight_);
  rows_of(latent, latent_x_, latent_);
}

bool Decoder::compute(const Batch& host, KvCache& cache, const ForwardTrace& trace) {
  if (host.tokens == 0) return false;
  check_batch(host);
  // What is traced has a row for each of the caller's tokens.
  const bool traced = trace.experts || trace.forced_experts;
  const Batch& batch = batch_.place(host, parts_.spec.rope, /*pad=*/!traced);
  reserve(batch);
  const auto work = [&] { run(batch, cache, trace); };
  if (batch_.decodes()) {
    const uint64_t adapters = batch.adapters ? lora_.shape() : 0;
    device().run_recorded(batch_.key() ^ adapters ^ reinterpret_cast<uintptr_t>(&cache), work);
  } else {
    work();
  }
  return batch.logit_count > 0;
}

void Decoder::forward(const Batch& host, KvCache& cache, float* logits, const ForwardTrace& trace) {
  logits_to_ = logits;
  if (!compute(host, cache, trace) || device().is_host()) return;
  device().download(logits, logits_to_, sizeof(float) * host.logit_count * parts_.spec.vocab);
}

void Decoder::forward_and_choose(const Batch& host, KvCache& cache, const StepOutput& output) {
  if (!compute(host, cache, {})) return;
  const size_t rows = host.logit_count, vocab = parts_.spec.vocab;
  const size_t result_bytes = rows * sizeof(RowResult);
  const size_t best_bytes = rows * output.top * sizeof(TopLogit);
  choices_.reserve(device(), rows * sizeof(RowChoice));
  told_.reserve(device(), result_bytes + best_bytes);
  device().upload(choices_.data(), output.choices.data(), rows * sizeof(RowChoice));
  parts_.kernels->choose(
      {.logits = logits_to_,
       .rows = host.logit_count,
       .vocab = parts_.spec.vocab,
       .choices = choices_.as<RowChoice>(),
       .top = output.top,
       .results = told_.as<RowResult>(),
       .best = reinterpret_cast<TopLogit*>(told_.as<std::byte>() + result_bytes)});
  // In one piece: each download is a wait.
  landed_.resize(result_bytes + best_bytes);
  device().download(landed_.data(), told_.data(), landed_.size());
  std::memcpy(output.results, landed_.data(), result_bytes);
  if (best_bytes > 0) std::memcpy(output.best, landed_.data() + result_bytes, best_bytes);
  for (size_t first = 0, end; first < rows; first = end) {
    end = first + 1;
    if (output.chosen[first]) continue;
    while (end < rows && !output.chosen[end]) ++end;
    device().download(output.logits + first * vocab, logits_to_ + first * vocab,
                      (end - first) * vocab * sizeof(float));
  }
}

void Decoder::read_row(int row, float* logits) {
  const size_t vocab = parts_.spec.vocab;
  device().download(logits, logits_to_ + row * vocab, vocab * sizeof(float));
}

void Decoder::run(const Batch& batch, KvCache& cache, const ForwardTrace& trace) {
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
  kernels.head(batch, {.residual = residual_.as<float>(),
                       .norm = final_norm_,
                       .head = head_,
                       .logits = logits_to_});
}

}  // namespace lk
