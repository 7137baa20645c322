// What becomes of each linear of a checkpoint that is quantized, and which tensors it is written
// as. Plain values; views into the checkpoint, the table and the target.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_writer.h"
#include "quant/detect.h"
#include "quant/encode.h"
#include "quant/name_patterns.h"

namespace lk {

enum class Fate : uint8_t {
  kNone,        // nothing stands in the file (a tied head)
  kCopied,      // plain in the file: its tensors as they are
  kDecoded,     // quantized in the file, plain (bf16) from now on
  kEncoded,     // quantized
  kTranscribed  // in the target's format already: codes and scales as they are, in its layout
};

inline constexpr size_t kNoTensor = static_cast<size_t>(-1);

// Rows that lie together in one tensor: of one matrix, or of one after the other for all experts.
struct Piece {
  RowPart part = RowPart::kAll;
  int first_expert = 0, experts = 1;
  int64_t rows = 0, cols = 0;  // of one matrix
  bool transposed = false;     // (experts, in, out); plain weights only
  size_t codes = kNoTensor, scales = kNoTensor, tensor_scale = kNoTensor, bias = kNoTensor;
};

struct PlannedLinear {
  const StoredLinear* source = nullptr;
  Fate fate = Fate::kNone;
  std::string name;           // module or parameter in the checkpoint that is read
  std::vector<Piece> pieces;  // kDecoded, kEncoded, kTranscribed
  size_t first_tensor = 0;    // kCopied: the source's tensors stand from here on
};

struct QuantizePlan {
  std::vector<PlannedLinear> linears;  // same order as the table's
  std::vector<DeclaredTensor> tensors;
  std::vector<std::pair<size_t, std::string>>
      copied;  // plain tensors: declaration, name in the file
  ModuleNames names;
};

// Root prefix and spelling of linears as `keep` may name them: the module's path under every name
// that it is known by, with the number of `expert`; without one where that is negative.
std::vector<std::string> keep_spellings(const LinearTable& table, const std::string& prefix,
                                        const LinearSpec& spec, int expert = -1);

// Errors: a linear whose width the format cannot hold, or whose experts the layout cannot, or some
// of whose experts `keep` names but not all; each names it.
Result<QuantizePlan> plan_quantization(const Checkpoint& checkpoint, const LinearTable& table,
                                       const StoredModel& stored, const Target& target,
                                       const NamePatterns& keep);

// Row `row` of a piece's part as a row of the whole linear.
int64_t whole_row(const LinearSpec& spec, RowPart part, int64_t row);

}  // namespace lk
