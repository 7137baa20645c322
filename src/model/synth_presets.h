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

// `name`: of a preset (in any case), or a folder whose config.json (and hf_quant_config.json) say
// what to imitate. `layers` 0: all. Errors: an unknown name, a config that no architecture takes,
// more layers than there are.
Result<SynthModel> synth_model(const std::string& name, int layers);

// A tokenizer.json with one token for each byte, spelled as byte-level BPE spells it, and the
// special ids of the configs. Errors: a vocabulary that has no room for them.
Result<std::string> byte_tokenizer(const SynthModel& model);

// `router_skew` as in SynthOptions. Errors: kUnsupported where no bias could skew the router.
Result<std::vector<SynthTensor>> synth_tensors(const SynthModel& model, double router_skew);

}  // namespace lk
