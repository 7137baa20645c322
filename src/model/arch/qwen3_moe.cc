#include "model/arch/attention_moe.h"

namespace lk {
namespace {

Result<AttentionMoeConfig> parse(const HfConfig& files) {
  const JsonFields fields = files.fields();
  LK_ASSIGN_OR_RETURN(AttentionMoeConfig config,
                      parse_attention_moe(fields, "num_experts", "moe_intermediate_size"));
  config.architecture = "qwen3_moe";
  config.qk_norm = QkNorm::kEachHead;
  LK_ASSIGN_OR_RETURN(config.rope, parse_rope(fields, 10000));
  // The class leaves the weights as they are unless the config says otherwise.
  LK_ASSIGN_OR_RETURN(const bool normalized, fields.boolean_or("norm_topk_prob", false));
  config.rule = normalized ? RouterRule::kTopKThenSoftmax : RouterRule::kSoftmaxThenTopK;
  LK_ASSIGN_OR_RETURN(const bool sliding, fields.boolean_or("use_sliding_window", false));
  if (sliding) return unsupported("{}: use_sliding_window is true, expected false", fields.what());
  // Layers with one dense matrix in place of experts: no published model has any.
  if (fields.has("decoder_sparse_step")) {
    LK_ASSIGN_OR_RETURN(const int step, count(fields, "decoder_sparse_step", kMaxLayers));
    if (step != 1)
      return unsupported("{}: decoder_sparse_step is {}, expected 1", fields.what(), step);
  }
  if (fields.has("mlp_only_layers") && !fields.json()["mlp_only_layers"].empty())
    return unsupported("{}: mlp_only_layers lists layers, expected none", fields.what());
  return config;
}

}  // namespace

extern constinit const ArchRow kArchQwen3Moe = attention_moe_row<parse>("qwen3_moe");

}  // namespace lk
