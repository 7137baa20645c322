// Which backend computes the experts of each layer group: from what the layers need, once, when a
// model is loaded. Stateless.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/moe_backends.h"
#include "model/decoder_spec.h"
#include "model/model.h"
#include "quant/detect.h"

namespace lk {

// Consecutive MoE layers that need the same.
struct MoeGroup {
  int first_layer = 0, last_layer = 0;
  MoeNeeds needs;
  MoeChoice choice;
};

// `kernels`: the row of kernels_table() that runs the model. Errors: options.moe_backend does not
// exist or lacks what a layer needs.
Result<std::vector<MoeGroup>> plan_moe(const StoredModel& stored, const LinearTable& table,
                                       const DecoderSpec& spec, std::string_view kernels,
                                       const MoeOptions& options);

// The form of `linear`'s products: its group's for an expert linear, else the default one.
ProductForm product_form(const std::vector<MoeGroup>& groups, const LinearSpec& linear);

// "layers 0-23: mxfp4 experts on cpu-w16; not cpu-w4a8: ...", for the log of the start.
std::string describe(const MoeGroup& group);

}  // namespace lk
