// What each tool writes into config.json (quantization_config) and hf_quant_config.json.
#include <nlohmann/json.hpp>

#include "quant/encode/targets.h"

namespace lk {
namespace {

std::vector<std::string> with_embedding(const ModuleNames& names) {
  std::vector<std::string> all = names.embedding;
  all.insert(all.end(), names.plain.begin(), names.plain.end());
  return all;
}

OrderedJson transformers_mxfp4(const Target& target, const ModuleNames& names) {
  return {{"quant_method", target.config_name}, {"modules_to_not_convert", with_embedding(names)}};
}

OrderedJson transformers_fp8(const Target& target, const ModuleNames& names) {
  return {{"quant_method", target.config_name},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {target.stored->group_rows, target.stored->group_cols}},
          {"modules_to_not_convert", with_embedding(names)}};
}

// QuantizationArgs of compressed-tensors.
OrderedJson arguments(const Format& format, std::string_view strategy, bool activations) {
  OrderedJson out = {{"num_bits", element_bits(format.element)},
                     {"type", "float"},
                     {"symmetric", true},
                     {"group_size", nullptr},
                     {"strategy", strategy},
                     {"dynamic", activations}};
  if (strategy == "block") out["block_structure"] = {format.group_rows, format.group_cols};
  if (strategy == "group" || strategy == "tensor_group") out["group_size"] = format.group_cols;
  if (format.scale == ScaleCodec::kE8M0) out["scale_dtype"] = "torch.uint8";
  if (format.scale == ScaleCodec::kE4M3) out["scale_dtype"] = "torch.float8_e4m3fn";
  return out;
}

std::string_view strategy_of(const Format& format) {
  if (format.group_cols == 0) return format.group_rows == 0 ? "tensor" : "channel";
  if (format.group_rows > 1) return "block";
  return format.tensor_scale == TensorScale::kNone ? "group" : "tensor_group";
}

// Where every scale is a float, activations are quantized at run time as its FP8 schemes do; the
// others are weight-only (NVFP4A16, MXFP4A16, MXFP8A16).
OrderedJson compressed_tensors(const Target& target, const ModuleNames& names) {
  const Format& format = *target.stored;
  const std::string_view strategy = strategy_of(format);
  OrderedJson activations;
  if (format.scale == ScaleCodec::kFloat || format.scale == ScaleCodec::kNone) {
    activations = arguments(format, strategy == "block" ? "group" : "token", true);
  }
  return {{"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", arguments(format, strategy, false)},
              {"input_activations", activations},
              {"output_activations", nullptr},
              {"format", target.config_name}}}}},
          {"quant_method", "compressed-tensors"},
          {"kv_cache_scheme", nullptr},
          {"format", target.config_name},
          {"quantization_status", "compressed"},
          {"global_compression_ratio", nullptr},
          {"ignore", names.plain}};
}

// Readers know the layout by this name.
OrderedJson modelopt_producer() { return {{"name", "modelopt"}, {"version", "0.47.0"}}; }

OrderedJson modelopt_hf_quant_config(const Target& target, const ModuleNames& names) {
  OrderedJson quantization = {{"quant_algo", target.config_name}, {"kv_cache_quant_algo", nullptr}};
  if (target.stored->group_cols > 0) quantization["group_size"] = target.stored->group_cols;
  quantization["exclude_modules"] = names.plain;
  return {{"producer", modelopt_producer()}, {"quantization", quantization}};
}

OrderedJson modelopt(const Target& target, const ModuleNames& names) {
  OrderedJson weights = {
      {"dynamic", false}, {"num_bits", element_bits(target.stored->element)}, {"type", "float"}};
  if (target.stored->group_cols > 0) weights["group_size"] = target.stored->group_cols;
  return {{"config_groups", {{"group_0", {{"weights", weights}, {"targets", {"Linear"}}}}}},
          {"ignore", names.plain},
          {"quant_algo", target.config_name},
          {"producer", modelopt_producer()},
          {"quant_method", "modelopt"}};
}

}  // namespace

const ToolConfig kTransformersMxfp4{.config = transformers_mxfp4};
const ToolConfig kTransformersFp8{.config = transformers_fp8};
const ToolConfig kCompressedTensors{.config = compressed_tensors};
const ToolConfig kModelOpt{.config = modelopt, .hf_quant_config = modelopt_hf_quant_config};

}  // namespace lk
