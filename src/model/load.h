// Loading of a decoder from an opened checkpoint. Stateless.
#pragma once

#include <memory>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/linear_table.h"
#include "kernels/kernels.h"
#include "model/decoder_spec.h"
#include "model/model.h"

namespace lk {

// Matches, checks and packs every tensor, linear by linear: beside the packed weights at most one
// linear of the file is resident. Model::load with the description and the kernels given
// (ModelOptions::kernels and
// ::threads are not used). Errors: one sentence that names the tensor; kResource if memory does not
// suffice.
// `device_reason` and `device_among` go into the ModelInfo.
Result<std::unique_ptr<Model>> load_decoder(Checkpoint checkpoint, LinearTable table,
                                            DecoderSpec spec, std::unique_ptr<Kernels> kernels,
                                            const ModelOptions& options,
                                            std::string device_reason = {},
                                            bool device_among = false);

}  // namespace lk
