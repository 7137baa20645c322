// Nemotron-H with experts (Nemotron-3): its row in the table of architectures. Pure functions.
#pragma once

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/linear_table.h"
#include "model/decoder_spec.h"

namespace lk {

Result<LinearTable> nemotron_h_table(const HfConfig& config);
Result<DecoderSpec> nemotron_h_decoder(const HfConfig& config);

}  // namespace lk
