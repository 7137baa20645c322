// gpt-oss's row in the table of architectures. Pure functions.
#pragma once

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/linear_table.h"
#include "model/decoder_spec.h"

namespace lk {

Result<LinearTable> gpt_oss_table(const HfConfig& config);
Result<DecoderSpec> gpt_oss_decoder(const HfConfig& config);

}  // namespace lk
