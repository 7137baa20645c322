// Qwen3.5-MoE, which Qwen3.6 is: its rows in the table of architectures. The text part of a model
// that also sees, or a text model alone. Pure functions.
#pragma once

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/linear_table.h"
#include "model/decoder_spec.h"

namespace lk {

Result<LinearTable> qwen3_5_moe_table(const HfConfig& config);
Result<DecoderSpec> qwen3_5_moe_decoder(const HfConfig& config);

}  // namespace lk
