// The primitives that the reference stages are composed of, one plain loop each, summed in double
// precision. Stateless.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace lk::reference {

// out[i] = weight[i] * x[i] / sqrt(mean(x^2) + eps), i < n.
void rms_norm(const float* x, const Norm& norm, int64_t n, float* out);

// Rotates the first `rotary` of each head's dims: pairs (i, i + rotary/2), y1 = x1 c - x2 s, y2 =
// x2 c + x1 s. x: [heads, head_dim].
void rope(float* x, int heads, int head_dim, int rotary, const float* cos, const float* sin);

// Causal attention of one query head over `count` keys and values (k, v: [count, head_dim]); sink:
// extra logit or null.
void attend(const float* q, const std::vector<float>& keys, const std::vector<float>& values,
            int64_t count, int head_dim, float scale, const float* sink, float* out);

// The k largest of logits[n], best first, ties to the lower index.
void top_k(const float* logits, int n, int k, int32_t* chosen);

// Softmax of logits[chosen[0..k)] into weight[0..k).
void softmax_chosen(const float* logits, const int32_t* chosen, int k, float* weight);

// The same of a softmax over all n logits.
void softmax_of_all(const float* logits, int n, const int32_t* chosen, int k, float* weight);

// The experts of one token by its logits, best first, and their weights; with `forced` [k] the
// weights of these.
void choose_experts(const RouteArgs& args, const float* logits, const int32_t* forced,
                    int32_t* chosen, float* weight);

// out[i] = activation of unit i of h, a row of an expert's first linear in `order`, i < n.
void activate(Activation activation, float alpha, float limit, RowOrder order, const float* h,
              int64_t n, float* out);

// x[i] *= sigmoid(gate[i]).
void gate_sigmoid(const float* gate, int64_t n, float* x);

float sigmoid(float x);

// up * gate * sigmoid(gate).
float swiglu(float gate, float up);

// gpt-oss: gate = min(gate, limit), up = clamp(up, -limit, limit), (up + 1) * gate * sigmoid(alpha
// * gate).
float clamped_swiglu(float gate, float up, float alpha, float limit);

}  // namespace lk::reference
