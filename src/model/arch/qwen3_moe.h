// Qwen3-MoE: its row in the table of architectures. Pure functions.
#pragma once

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/linear_table.h"
#include "model/decoder_spec.h"

namespace lk {

Result<LinearTable> qwen3_moe_table(const HfConfig& config);
Result<DecoderSpec> qwen3_moe_decoder(const HfConfig& config);

}  // namespace lk
