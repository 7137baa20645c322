#include "kernels/cpu/recurrent.h"

#include <cmath>

#include "base/check.h"
#include "kernels/cpu/linear.h"
#include "kernels/reference/recurrent.h"

namespace lk::cpu {
namespace {

// The first token of a sequence in this step starts from zeros where it stands at position 0.
bool starts_fresh(const Batch& batch, int64_t sequence) {
  return batch.positions[batch.query_start[sequence]] == 0;
}

}  // namespace

// The causal convolution of all tokens and SiLU; q and k heads are scaled to length 1 on the way.
struct RecurrentStages::Convolution {
  const float* inputs;  // [T, channels], rows `stride` apart
  int64_t stride, channels;
  int kernel;
  const float* weight;  // [kernel, channels]
  const float* bias;    // [channels] or null
  float* state;         // [slots, kernel - 1, channels]
  float* out;           // [T, channels]
  // The first `unit_channels` are heads of `unit_dim` to be scaled, the first `query_channels` of
  // them by another unit_dim^-1/2; 0: none.
  int64_t unit_channels, query_channels, unit_dim;
};

// S = decay S, d = gain (v - S^T k) or gain v, S += k d^T, out = S^T q for every token and head.
// All vectors of a token lie in its row of `mixed`.
struct RecurrentStages::Scan {
  const float* mixed;  // [T, channels]
  int64_t channels, q, k, v;
  int key_heads, key_dim, heads, value_dim;
  bool delta;
  const float* decay;  // [T, heads]
  const float* gain;   // [T, heads]
  float* state;        // [slots, heads, key_dim, value_dim]
  float* out;          // [T, heads * value_dim]
};

void RecurrentStages::convolve(const Batch& batch, const Convolution& conv) {
  LK_CHECK(conv.kernel <= kMaxConvolution);
  if (zeros_.size() < conv.channels * sizeof(float))
    zeros_ = AlignedBuffer(conv.channels * sizeof(float));
  // One sequence's channels by whole heads, about 128 at once: enough items for many threads.
  const int64_t head = std::max<int64_t>(conv.unit_dim, 1);
  const int64_t unit = (127 + head) / head * head;
  const int64_t blocks = (conv.channels + unit - 1) / unit;
  pool_.run(batch.sequences * blocks, 1, [&](int64_t item, int) {
    const int64_t first = item % blocks * unit;
    convolve_block(batch, conv, item / blocks, first, std::min(unit, conv.channels - first));
  });
}

void RecurrentStages::convolve_block(const Batch& batch, const Convolution& conv, int64_t sequence,
                                     int64_t first, int64_t count) const {
  const int64_t start = batch.query_start[sequence], end = batch.query_start[sequence + 1];
  if (start == end) return;
  const int64_t before = conv.kernel - 1;
  const bool fresh = starts_fresh(batch, sequence);
  // Null where a kernel of one leaves no rows.
  float* state = conv.state + batch.state_slot[sequence] * before * conv.channels;
  // The input `i` tokens after the first of this step, which may lie before it.
  auto input = [&](int64_t i) -> const float* {
    if (i >= 0) return conv.inputs + (start + i) * conv.stride + first;
    return fresh ? zeros_.as<float>() : state + (before + i) * conv.channels + first;
  };
  const float* rows[kMaxConvolution];
  ConvolutionItem item{rows,
                       conv.kernel,
                       conv.weight + first,
                       conv.channels,
                       conv.bias ? conv.bias + first : nullptr,
                       count,
                       nullptr};
  const int64_t unit_end = std::min(first + count, conv.unit_channels);
  for (int64_t i = 0; i < end - start; ++i) {
    for (int j = 0; j < conv.kernel; ++j) rows[j] = input(i - before + j);
    item.out = conv.out + (start + i) * conv.channels + first;
    isa_.convolve(item);
    for (int64_t c = first; c < unit_end; c += conv.unit_dim) {
      const float factor =
          c < conv.query_channels ? 1.0f / std::sqrt(static_cast<float>(conv.unit_dim)) : 1.0f;
      isa_.unit_length(item.out + c - first, conv.unit_dim, factor);
    }
  }
  // The last inputs, before the activation, stay for the next step; from the oldest on, for a row
  // moves towards the front if at all.
  for (int64_t j = 0; j < before; ++j) {
    std::memmove(state + j * conv.channels + first, input(end - start - before + j),
                 count * sizeof(float));
  }
}

void RecurrentStages::scan(const Batch& batch, const Scan& scan) {
  const int columns = isa_.scan_columns;
  const int64_t blocks = (scan.value_dim + columns - 1) / columns;
  const int64_t scratch_floats = int64_t{scan.key_dim} * columns;
  float* scratch = floats(scratch_, scratch_floats * pool_.threads());
  const int64_t width = int64_t{scan.heads} * scan.value_dim;
  pool_.run(batch.sequences * scan.heads * blocks, 1, [&](int64_t i, int thread) {
    const int64_t first = i % blocks * columns, head = i / blocks % scan.heads;
    const int64_t sequence = i / blocks / scan.heads, t = batch.query_start[sequence];
    const int tokens = static_cast<int>(batch.query_start[sequence + 1] - t);
    if (tokens == 0) return;
    const int64_t key_head = head / (scan.heads / scan.key_heads);
    const float* row = scan.mixed + t * scan.channels;
    ScanItem item;
    item.tokens = tokens;
    item.key_dim = scan.key_dim;
    item.columns = static_cast<int>(std::min<int64_t>(columns, scan.value_dim - first));
    item.q = row + scan.q + key_head * scan.key_dim;
    item.k = row + scan.k + key_head * scan.key_dim;
    item.v = row + scan.v + head * scan.value_dim + first;
    item.stride = scan.channels;
    item.delta = scan.delta;
    item.decay = scan.decay + t * scan.heads + head;
    item.gain = scan.gain + t * scan.heads + head;
    item.rate_stride = scan.heads;
    item.state = scan.state +
                 (batch.state_slot[sequence] * scan.heads + head) * scan.key_dim * scan.value_dim +
                 first;
    item.state_stride = scan.value_dim;
    item.fresh = starts_fresh(batch, sequence);
    item.scratch = scratch + thread * scratch_floats;
    item.out = scan.out + t * width + head * scan.value_dim + first;
    item.out_stride = width;
    isa_.scan(item);
  });
}

void RecurrentStages::delta_net(const Batch& batch, const DeltaNetArgs& args) {
  const int64_t hidden = packed(args.qkv).in, heads = args.value_heads;
  const int64_t keys = int64_t{args.key_heads} * args.key_dim, values = heads * args.value_dim;
  const int64_t channels = 2 * keys + values, rates_size = batch.tokens * heads;
  float* x = floats(x_, batch.tokens * hidden);
  float* u = floats(inputs_, batch.tokens * channels);
  float* z = floats(gate_, batch.tokens * values);
  float* decay = floats(rates_, 2 * rates_size);  // a and b at first
  float* gain = decay + rates_size;
  float* mixed = floats(mixed_, batch.tokens * channels);
  norm_rows(isa_, pool_, args.residual, args.norm, nullptr, batch.tokens, hidden, x);
  plan_.clear();
  add_dense(plan_, batch, args.qkv, x);
  add_dense(plan_, batch, args.z, x);
  add_dense(plan_, batch, args.a, x);
  add_dense(plan_, batch, args.b, x);
  float* const out[4] = {u, z, decay, gain};
  const int64_t width[4] = {channels, values, heads, heads};
  plan_.run([&](int job, int row, int64_t first, const float* rows, int count) {
    store_rows(row, first, rows, count, width[job], out[job]);
  });
  pool_.run(rates_size, 256, [&](int64_t i, int) {
    const int64_t h = i % heads;
    const reference::Rates rates =
        reference::delta_net_rates(decay[i], gain[i], args.a_log[h], args.dt_bias[h]);
    decay[i] = static_cast<float>(rates.decay);
    gain[i] = static_cast<float>(rates.gain);
  });
  convolve(batch, {u, channels, channels, args.kernel, args.conv, nullptr, args.state.conv, mixed,
                   2 * keys, keys, args.key_dim});
  scan(batch, {mixed, channels, 0, keys, 2 * keys, args.key_heads, args.key_dim, args.value_heads,
               args.value_dim, true, decay, gain, args.state.state, args.out});
  pool_.run(rates_size, 8, [&](int64_t i, int) {
    float* head = args.out + i * args.value_dim;
    isa_.rms_norm(head, args.out_norm.weight, args.out_norm.eps, args.value_dim, head);
    isa_.gate_silu(z + i * args.value_dim, args.value_dim, head);
  });
}

void RecurrentStages::mamba(const Batch& batch, const MambaArgs& args) {
  const int64_t hidden = packed(args.in).in, rows = packed(args.in).out, heads = args.heads;
  const int64_t inner = heads * args.head_dim, keys = int64_t{args.groups} * args.state_dim;
  const int64_t channels = inner + 2 * keys, rates_size = batch.tokens * heads;
  float* x = floats(x_, batch.tokens * hidden);
  float* projected = floats(inputs_, batch.tokens * rows);  // z, x B C, dt
  float* decay = floats(rates_, 2 * rates_size);
  float* gain = decay + rates_size;
  float* mixed = floats(mixed_, batch.tokens * channels);
  norm_rows(isa_, pool_, args.residual, args.norm, nullptr, batch.tokens, hidden, x);
  plan_.clear();
  add_dense(plan_, batch, args.in, x);
  plan_.run([&](int, int row, int64_t first, const float* values, int count) {
    store_rows(row, first, values, count, rows, projected);
  });
  pool_.run(rates_size, 256, [&](int64_t i, int) {
    const int64_t t = i / heads, h = i % heads;
    const reference::Rates rates =
        reference::mamba_rates(projected[t * rows + inner + channels + h], args.a_log[h],
                               args.dt_bias[h], args.dt_min, args.dt_max);
    decay[i] = static_cast<float>(rates.decay);
    gain[i] = static_cast<float>(rates.gain);
  });
  convolve(batch, {projected + inner, rows, channels, args.kernel, args.conv, args.conv_bias,
                   args.state.conv, mixed, 0, 0, 0});
  scan(batch, {mixed, channels, inner + keys, inner, 0, args.groups, args.state_dim, args.heads,
               args.head_dim, false, decay, gain, args.state.state, args.out});
  const int64_t width = inner / args.groups, group_heads = heads / args.groups;
  pool_.run(batch.tokens * args.groups, 8, [&](int64_t i, int) {
    const int64_t t = i / args.groups, group = i % args.groups;
    float* out = args.out + i * width;
    const float* v = mixed + t * channels + group * width;
    for (int64_t h = 0; h < group_heads; ++h) {
      isa_.add_scaled(v + h * args.head_dim, args.d[group * group_heads + h], args.head_dim,
                      out + h * args.head_dim);
    }
    isa_.gate_silu(projected + t * rows + group * width, width, out);
    isa_.rms_norm(out, args.out_norm.weight + group * width, args.out_norm.eps, width, out);
  });
}

}  // namespace lk::cpu
