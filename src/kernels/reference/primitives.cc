#include "kernels/reference/primitives.h"

#include <algorithm>
#include <cmath>

namespace lk::reference {

void rms_norm(const float* x, const Norm& norm, int64_t n, float* out) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(n) + norm.eps);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(norm.weight[i] * (x[i] * scale));
}

void rope(float* x, int heads, int head_dim, int rotary, const float* cos, const float* sin) {
  const int half = rotary / 2;
  for (int h = 0; h < heads; ++h) {
    float* head = x + int64_t{h} * head_dim;
    for (int i = 0; i < half; ++i) {
      const float x1 = head[i], x2 = head[i + half];
      head[i] = x1 * cos[i] - x2 * sin[i];
      head[i + half] = x2 * cos[i] + x1 * sin[i];
    }
  }
}

void attend(const float* q, const std::vector<float>& keys, const std::vector<float>& values,
            int64_t count, int head_dim, float scale, const float* sink, float* out) {
  std::vector<double> score(count);
  double max = sink ? *sink : -INFINITY;
  for (int64_t j = 0; j < count; ++j) {
    double dot = 0;
    for (int d = 0; d < head_dim; ++d) dot += double{q[d]} * keys[j * head_dim + d];
    score[j] = dot * scale;
    max = std::max(max, score[j]);
  }
  double sum = sink ? std::exp(*sink - max) : 0;
  for (int64_t j = 0; j < count; ++j) sum += score[j] = std::exp(score[j] - max);
  for (int d = 0; d < head_dim; ++d) {
    double value = 0;
    for (int64_t j = 0; j < count; ++j) value += score[j] * values[j * head_dim + d];
    out[d] = static_cast<float>(value / sum);
  }
}

void top_k(const float* logits, int n, int k, int32_t* chosen) {
  for (int slot = 0; slot < k; ++slot) {
    int best = -1;
    for (int e = 0; e < n; ++e) {
      if (std::find(chosen, chosen + slot, e) != chosen + slot) continue;
      if (best < 0 || logits[e] > logits[best]) best = e;
    }
    chosen[slot] = best;
  }
}

void softmax_chosen(const float* logits, const int32_t* chosen, int k, float* weight) {
  float max = logits[chosen[0]];
  for (int i = 1; i < k; ++i) max = std::max(max, logits[chosen[i]]);
  double sum = 0;
  for (int i = 0; i < k; ++i) sum += std::exp(double{logits[chosen[i]]} - max);
  for (int i = 0; i < k; ++i) {
    weight[i] = static_cast<float>(std::exp(double{logits[chosen[i]]} - max) / sum);
  }
}

float clamped_swiglu(float gate, float up, float alpha, float limit) {
  gate = std::min(gate, limit);
  up = std::clamp(up, -limit, limit);
  return static_cast<float>((double{up} + 1.0) * gate / (1.0 + std::exp(-double{alpha} * gate)));
}

float swiglu(float gate, float up) {
  return static_cast<float>(double{up} * gate / (1.0 + std::exp(-double{gate})));
}

void softmax_of_all(const float* logits, int n, const int32_t* chosen, int k, float* weight) {
  const float largest = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += std::exp(double{logits[i]} - largest);
  for (int i = 0; i < k; ++i)
    weight[i] = static_cast<float>(std::exp(double{logits[chosen[i]]} - largest) / sum);
}

namespace {

// Leaves the scores of the `top` groups whose two best sum to most; those of the others become
// -infinity.
void keep_groups(int groups, int top, std::vector<float>& score) {
  const int size = static_cast<int>(score.size()) / groups;
  std::vector<float> best_two(groups);
  for (int g = 0; g < groups; ++g) {
    int32_t best[2];
    const int count = std::min(size, 2);
    reference::top_k(&score[g * size], size, count, best);
    for (int i = 0; i < count; ++i) best_two[g] += score[g * size + best[i]];
  }
  std::vector<int32_t> kept(top);
  reference::top_k(best_two.data(), groups, top, kept.data());
  for (int g = 0; g < groups; ++g) {
    if (std::find(kept.begin(), kept.end(), g) == kept.end())
      std::fill_n(&score[g * size], size, -INFINITY);
  }
}

void sigmoid_choice(const RouterChoice& choice, const float* logits, int n, int k,
                    int32_t* chosen) {
  std::vector<float> score(n);
  for (int e = 0; e < n; ++e)
    score[e] = sigmoid(logits[e]) + (choice.correction ? choice.correction[e] : 0.0f);
  if (choice.top_groups < choice.groups) keep_groups(choice.groups, choice.top_groups, score);
  top_k(score.data(), n, k, chosen);
}

void sigmoid_weights(const RouterChoice& choice, const float* logits, const int32_t* chosen, int k,
                     float* weight) {
  double sum = 1e-20;
  for (int i = 0; i < k; ++i) sum += sigmoid(logits[chosen[i]]);
  const double factor = choice.normalized ? choice.scale / sum : choice.scale;
  for (int i = 0; i < k; ++i) weight[i] = static_cast<float>(sigmoid(logits[chosen[i]]) * factor);
}

}  // namespace

void choose_experts(const RouteArgs& args, const float* logits, const int32_t* forced,
                    int32_t* chosen, float* weight) {
  const bool by_sigmoid = args.rule == RouterRule::kSigmoidThenTopK;
  if (forced)
    std::copy_n(forced, args.top_k, chosen);
  else if (by_sigmoid)
    sigmoid_choice(args.choice, logits, args.experts, args.top_k, chosen);
  else
    top_k(logits, args.experts, args.top_k, chosen);
  if (by_sigmoid)
    sigmoid_weights(args.choice, logits, chosen, args.top_k, weight);
  else if (args.rule == RouterRule::kSoftmaxThenTopK)
    softmax_of_all(logits, args.experts, chosen, args.top_k, weight);
  else
    softmax_chosen(logits, chosen, args.top_k, weight);
}

float sigmoid(float x) { return static_cast<float>(1.0 / (1.0 + std::exp(-double{x}))); }

void gate_sigmoid(const float* gate, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] *= sigmoid(gate[i]);
}

void activate(Activation activation, float alpha, float limit, RowOrder order, const float* h,
              int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    if (!is_gated(activation)) {
      const float value = h[i] > 0 || h[i] != h[i] ? h[i] : 0;  // NaN stays NaN
      out[i] = value * value;
      continue;
    }
    const bool interleaved = order == RowOrder::kInterleavedGateUp;
    const float gate = interleaved ? h[2 * i] : h[i];
    const float up = interleaved ? h[2 * i + 1] : h[n + i];
    out[i] = activation == Activation::kSwiGlu ? swiglu(gate, up)
                                               : clamped_swiglu(gate, up, alpha, limit);
  }
}

}  // namespace lk::reference
