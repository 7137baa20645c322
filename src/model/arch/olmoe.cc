#include "model/arch/attention_moe.h"

namespace lk {
namespace {

Result<AttentionMoeConfig> parse(const HfConfig& files) {
  const JsonFields fields = files.fields();
  LK_ASSIGN_OR_RETURN(AttentionMoeConfig config,
                      parse_attention_moe(fields, "num_experts", "intermediate_size"));
  config.architecture = "olmoe";
  config.qk_norm = QkNorm::kWhole;
  LK_ASSIGN_OR_RETURN(config.rope, parse_rope(fields, 10000));
  LK_ASSIGN_OR_RETURN(const bool normalized, fields.boolean_or("norm_topk_prob", false));
  config.rule = normalized ? RouterRule::kTopKThenSoftmax : RouterRule::kSoftmaxThenTopK;
  if (fields.has("clip_qkv")) {
    LK_ASSIGN_OR_RETURN(const double clip,
                        number_between(fields, "clip_qkv", kRequired, 1e-6, 1e6));
    config.clip = static_cast<float>(clip);
  }
  return config;
}

}  // namespace

extern constinit const ArchRow kArchOlmoe = attention_moe_row<parse>("olmoe");

}  // namespace lk
