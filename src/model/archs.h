// The table of architectures: for each model_type of a config.json, its table of linears and its
// decoder. Static, immutable.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/linear_table.h"
#include "model/decoder_spec.h"

namespace lk {

struct ArchRow {
  std::string_view model_type;                    // as config.json spells it
  Result<LinearTable> (*table)(const HfConfig&);  // errors name the config's field
  Result<DecoderSpec> (*decoder)(const HfConfig&);
};

std::span<const ArchRow* const> archs_table();

// Errors: kUnsupported, naming the model_type and those that are known.
Result<const ArchRow*> find_arch(const std::string& model_type);

}  // namespace lk
