// What 8-bit rows do to activations and weights, one value at a time: their specification.
// Stateless.
#pragma once

#include <cstdint>

#include "kernels/product_form.h"

namespace lk::reference {

// The E4M3 value next to v (ties to the even code), +-448 beyond the largest. NaN stays NaN.
float round_to_e4m3(float v);

// x[0..n) becomes scale * code of every value. Int8: scale = max|x| / 127 of the group, code =
// round(x * (127 / max|x|)). E4M3: scale = `static_scale` where that is not 0 and whole rows share
// one, else max|x| / 448 of the group (or the power of two, activation_scale), code =
// round_to_e4m3(x / scale). A group of zeros stays 0; one with a
// value that is no finite number becomes NaN.
void quantize_activations(ActivationForm form, const Format& format, float static_scale, int64_t n,
                          float* x);

// Weights of one row become int8 codes of kInt8WeightGroup channels each, times their scale.
void requantize_int8(int64_t n, float* w);

}  // namespace lk::reference
