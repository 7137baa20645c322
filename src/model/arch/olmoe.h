// OLMoE: its row in the table of architectures. Pure functions.
#pragma once

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/linear_table.h"
#include "model/decoder_spec.h"

namespace lk {

Result<LinearTable> olmoe_table(const HfConfig& config);
Result<DecoderSpec> olmoe_decoder(const HfConfig& config);

}  // namespace lk
