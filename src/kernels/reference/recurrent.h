// The recurrent mixers between their projections, as plain loops summed in double precision; what
// stays between two tokens is float32. Stateless: states lie in the slots that the batch names.
#pragma once

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace lk::reference {

// DeltaNetArgs from its projections on, u: [T, channels], z: [T, value_heads * value_dim], a, b:
// [T, value_heads].
void delta_net(ThreadPool& pool, const Batch& batch, const DeltaNetArgs& args, const float* u,
               const float* z, const float* a, const float* b);

// MambaArgs from its projection on, projected: [T, rows of `in`].
void mamba(ThreadPool& pool, const Batch& batch, const MambaArgs& args, const float* projected);

// Rates of one head for one token.
struct Rates {
  double decay, gain;
};
// decay = exp(-exp(a_log) softplus(a + dt_bias)), gain = sigmoid(b).
Rates delta_net_rates(float a, float b, float a_log, float dt_bias);
// gain = clamp(softplus(dt + dt_bias), min, max), decay = exp(-exp(a_log) gain).
Rates mamba_rates(float dt, float a_log, float dt_bias, float min, float max);

}  // namespace lk::reference
