// What is no product with weights: norms, RoPE and the KV cache, attention, the choice of experts,
// the recurrent mixers, the choice of tokens. Launches on the context's stream; nothing here waits.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/context.h"
#include "kernels/kernels.h"

namespace lk::cuda {

// out[i] = rms_norm(x[row i]) in bfloat16, and in float32 where out_f32 is not null. Row i is
// token row_token[i], or i where that is null. A norm without weight copies.
void run_norm(Context& context, const float* x, const Norm& norm, int rows, int width,
              const int32_t* row_token, __nv_bfloat16* out, float* out_f32);

// out[i] = from[at[i]].
void run_gather(Context& context, const int32_t* from, const int32_t* at, int count, int32_t* out);

// What follows the projections of QkvArgs: norms of q and k, clip, RoPE, keys and values to the
// cache, q (and the gate) to their places. `query` [T, heads * head_dim], twice that with a gate;
// `key`, `value` [T, kv_heads * head_dim].
void finish_qkv(Context& context, const Batch& batch, const QkvArgs& args, const float* query,
                const float* key, const float* value);
void run_attention(Context& context, const Batch& batch, const AttentionArgs& args);

// RouteArgs from the router's logits [T, E] on. Padding tokens (Batch::sequence -1) get expert -1.
void choose_experts(Context& context, const Batch& batch, const RouteArgs& args,
                    const float* logits);

// The mixers from their projections on: u [T, 2 * key_heads * key_dim + value_heads * value_dim],
// z [T, value_heads * value_dim], a and b [T, value_heads]; projected [T, in's rows].
void mix_delta_net(Context& context, const Batch& batch, const DeltaNetArgs& args, const float* u,
                   const float* z, const float* a, const float* b);
void mix_mamba(Context& context, const Batch& batch, const MambaArgs& args, const float* projected);

// results[r].token = the lowest id of row r's largest logit, or one draw by `uniform` from
// softmax(logits * scale) by inverse CDF in the order of ids, as engine/sampler.h draws from all
// ids; the sums likewise. NaNs are never chosen; -1 if the largest is not finite. `choices` [rows]
// on the device.
void run_choice(Context& context, const float* logits, int rows, int vocab,
                const RowChoice* choices, RowResult* results);

// A nucleus that these do not hold makes the whole row travel.
inline constexpr int kMostTop = 256;
// That, or less where the GPU's shared memory does not hold as many of each part of a row.
int most_top(int vocab);
// best [rows, k], k <= most_top(vocab): the k largest logits below the limit of the rows whose
// choice has a `top`, by falling value, then rising id. NaN and -infinity do not count; id -1 where
// a row has too few, and in other rows.
void run_top(Context& context, const float* logits, int rows, int vocab, int k,
             const RowChoice* choices, TopLogit* best);

}  // namespace lk::cuda
