// In which numbers the products of a linear are computed. What LoRA reads is never quantized,
// whatever stands here. Plain values.
#pragma once

#include <cstdint>

#include "quant/format.h"

namespace lk {

// What becomes of activations before they meet the weights.
enum class ActivationForm : uint8_t {
  kUnquantized,
  kInt8,  // groups of channels, scale max |x| / 127
  kE4M3,  // as the checkpoint's format intends: groups, whole rows, or a scale from the file
};

struct ProductForm {
  ActivationForm activations = ActivationForm::kUnquantized;
  bool int8_weights = false;  // codes are requantized: groups of kInt8WeightGroup channels
  bool plain_loops = false;   // the reference's loops, whatever kernels the rest runs on
};

// Channels that share a scale of requantized weights: max |w| / 127.
inline constexpr int kInt8WeightGroup = 128;

// How activations are scaled before they are rounded.
struct ActivationScale {
  int group = 0;  // consecutive channels that share a scale; 0: the whole row
  // E8M0: the least 2^n under which no value is cut, as the tools that publish MXFP8 have it. (OCP
  // MX 1.0, section 6.3, cuts where the largest is over 1.75 times a power of two, by up to an
  // eighth: 2^(floor(log2 max|x|) - 8).)
  bool power_of_two = false;
};

// Int8: as many channels as share a weight scale, 32 at most. E4M3: the weights' own groups, or the
// whole row where weights have a scale for each channel or tensor.
inline ActivationScale activation_scale(ActivationForm form, const Format& format) {
  if (form == ActivationForm::kInt8) {
    const bool narrow = format.group_cols > 0 && format.group_cols < 32;
    return {.group = narrow ? format.group_cols : 32};
  }
  return {.group = format.group_cols, .power_of_two = format.scale == ScaleCodec::kE8M0};
}

}  // namespace lk
