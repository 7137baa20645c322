#include "model/arch/attention_moe.h"

namespace lk {
namespace {

Result<AttentionMoeConfig> parse(const HfConfig& files) {
  const JsonFields fields = files.fields();
  LK_ASSIGN_OR_RETURN(AttentionMoeConfig config,
                      parse_attention_moe(fields, "num_local_experts", "intermediate_size"));
  config.architecture = "mixtral";
  LK_ASSIGN_OR_RETURN(config.rope, parse_rope(fields, 1e6));
  if (fields.has("sliding_window")) {
    LK_ASSIGN_OR_RETURN(config.window, fields.integer("sliding_window", 1, kMaxPositions));
  }
  config.router = "block_sparse_moe.gate";
  config.gate = "block_sparse_moe.experts.{expert}.w1";
  config.up = "block_sparse_moe.experts.{expert}.w3";
  config.down = "block_sparse_moe.experts.{expert}.w2";
  return config;
}

}  // namespace

extern constinit const ArchRow kArchMixtral = attention_moe_row<parse>("mixtral");

}  // namespace lk
