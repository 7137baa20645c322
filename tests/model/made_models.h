// Models that tests make: the small one in every format, the same with its weights decoded, and
// ones of any size. For tests only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/encode.h"

namespace lk::test {

// A weight format in which `quantize` writes the small model; bf16 stands for a model whose linears
// are all kept plain.
struct MadeFormat {
  std::string name;        // as inspect has it
  const Target* target;    // what wrote it: the first that stores this format
  bool quantizes_experts;  // false: bf16
  bool quantizes_attention;
};
const std::vector<MadeFormat>& made_formats();
// Fit for the name of a test's case.
std::string case_name(const std::string& format);

// Folder of the small model in that format: made on first use, removed at the end of the process.
const std::string& small_model_in(const MadeFormat& format);

// Writes the checkpoint in `from` to the new folder `to` with every linear decoded to float32 by
// plain loops.
void write_decoded(const std::string& from, const std::string& to);

struct MadeSizes {
  int layers = 2, experts = 8, top_k = 2;
  int64_t hidden = 64, intermediate = 64, vocab = 256;
};
// Writes a gpt-oss of these sizes with random weights that bf16 holds, as float32, to the new
// folder `folder`.
void write_made_model(const std::string& folder, const MadeSizes& sizes, uint64_t seed);

}  // namespace lk::test
