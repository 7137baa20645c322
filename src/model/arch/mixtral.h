// Mixtral: its row in the table of architectures. Pure functions.
#pragma once

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/linear_table.h"
#include "model/decoder_spec.h"

namespace lk {

Result<LinearTable> mixtral_table(const HfConfig& config);
Result<DecoderSpec> mixtral_decoder(const HfConfig& config);

}  // namespace lk
