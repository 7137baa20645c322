// Published models that `lorikeet synth` can imitate: their JSON files, whole or with the first
// layers alone, and the tensors of their published layout with values that keep a random model
// stable. Stateless.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/linear_table.h"
#include "model/synth_writer.h"

namespace lk {

// Comma-separated names.
std::string synth_presets();

struct SynthModel {
  HfConfig files;
  LinearTable table;
};

// `layers` 0: all. Errors: an unknown name, more layers than there are.
Result<SynthModel> synth_model(const std::string& preset, int layers);

// `router_skew` as in SynthOptions. Errors: kUnsupported where no bias could skew the router.
Result<std::vector<SynthTensor>> synth_tensors(const SynthModel& model, double router_skew);

}  // namespace lk
