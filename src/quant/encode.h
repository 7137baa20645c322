// Encoding of weights: the inverse of decode_row (stored_linear.h), with the scales and the
// rounding of each tool that publishes quantized checkpoints. Pure functions and immutable rows of
// a static table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/tensor_view.h"
#include "quant/format.h"

namespace lk {

// All arithmetic is in float32, as the tools do for a model that is loaded in float32. Values are
// finite.
struct Encoder {
  // The tensor scale of matrices whose largest magnitude is `largest`; null where the format has
  // none.
  float (*tensor_scale)(float largest) = nullptr;
  // Encodes `rows` x `cols` values that lie row after row: one group of rows (Format::group_rows;
  // the last may be short), or one row where a group is one or all. Writes rows x code_bytes(cols)
  // `codes`, all of whose bytes are set, and row_scales(cols) `scales` in the target's type.
  void (*encode)(const float* values, int64_t rows, int64_t cols, float tensor_scale,
                 std::byte* codes, std::byte* scales) = nullptr;
};

// Which linears a tool quantizes; what is left out stays plain.
enum class Scope : uint8_t {
  kExperts,
  kLinears,  // all that quantizers_take (checkpoint/linear_table.h)
};

// How the experts of a linear lie in the file.
enum class ExpertForm : uint8_t {
  kFused,    // one parameter for all, (experts, out, ...)
  kModules,  // one module for each, gate and up apart
};

// Modules of a checkpoint as they are named in it.
struct ModuleNames {
  std::vector<std::string> plain;      // linears that are not quantized
  std::vector<std::string> embedding;  // of those, the embedding: no linear to most tools
};

struct Target;

// What stands in the JSON files.
struct ToolConfig {
  OrderedJson (*config)(const Target& target, const ModuleNames& names);  // quantization_config
  // hf_quant_config.json; null: the tool writes none.
  OrderedJson (*hf_quant_config)(const Target& target, const ModuleNames& names) = nullptr;
};

// A format as one tool writes it.
struct Target {
  std::string_view format;  // what --format names
  std::string_view recipe;  // what --recipe names: the tool
  const Format* stored;     // as detect.cc will find it
  Encoder encoder = {};
  // Parts behind a module's name (layout.h); empty: there is none.
  std::string_view codes = {}, scales = {}, tensor_scale = {};
  DType codes_dtype = DType::kU8, scales_dtype = DType::kU8;
  bool blocks = false;            // codes are [rows, groups, bytes of a group], not [rows, bytes]
  bool flat_scales = false;       // scales are [rows], not [rows, 1]
  Shape tensor_scale_shape = {};  // of one matrix
  bool shared_tensor_scale = false;  // by query, key and value, and by gate and up
  ExpertForm experts = ExpertForm::kModules;
  Scope scope = Scope::kLinears;
  std::string_view config_name = {};  // of the format, in the tool's JSON
  const ToolConfig* tool = nullptr;
  std::string_view rounding = {};  // how scales are chosen and codes rounded, for --help
};

// Every target; the first of a format is its default.
std::span<const Target* const> all_targets();
// `recipe` empty: the format's default. Errors: kInvalid listing the formats, or the recipes that
// write this one.
Result<const Target*> find_target(std::string_view format, std::string_view recipe);

}  // namespace lk
