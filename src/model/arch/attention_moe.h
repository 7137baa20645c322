// Decoders whose every layer is attention and a mixture of gated experts, without biases:
// Qwen3-MoE, OLMoE, Mixtral. Each has a file that reads its config into this and names what it
// calls differently. Pure functions.
#pragma once

#include <string>

#include "model/arch/config_fields.h"
#include "model/archs.h"
#include "model/decoder_spec.h"

namespace lk {

enum class QkNorm : uint8_t { kNone, kEachHead, kWhole };

struct AttentionMoeConfig {
  std::string architecture;
  int layers = 0;
  int64_t hidden = 0, intermediate = 0;  // of one expert
  int experts = 0, top_k = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
  int64_t vocab = 0, max_positions = 0;
  float norm_eps = 0;
  RopeConfig rope;
  bool tied_head = false;
  bool attention_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  float clip = 0;      // on q, k and v; 0: none
  int64_t window = 0;  // of every layer; 0: all keys
  RouterRule rule = RouterRule::kTopKThenSoftmax;
  // Modules of the published checkpoints, below a layer: the router, and the experts' matrices with
  // "{expert}". Transformers 5 calls all of them mlp.gate, mlp.experts.gate_up_proj and
  // mlp.experts.down_proj.
  std::string router = "mlp.gate";
  std::string gate = "mlp.experts.{expert}.gate_proj";
  std::string up = "mlp.experts.{expert}.up_proj";
  std::string down = "mlp.experts.{expert}.down_proj";
};

// The fields that all of them spell alike. `experts_key`: "num_experts" or "num_local_experts";
// `intermediate_key`: of one expert. head_dim is hidden / heads where the config has none.
Result<AttentionMoeConfig> parse_attention_moe(const JsonFields& fields,
                                               std::string_view experts_key,
                                               std::string_view intermediate_key);

// A layer's router and experts.
void add_experts(LinearTable& table, const AttentionMoeConfig& config, int layer);
LinearTable attention_moe_table(const AttentionMoeConfig& config);
DecoderSpec attention_moe_decoder(const AttentionMoeConfig& config);

// The row of an architecture whose config `parse` reads.
template <Result<AttentionMoeConfig> (*parse)(const HfConfig&)>
constexpr ArchRow attention_moe_row(std::string_view model_type) {
  return {.model_type = model_type,
          .table = [](const HfConfig& files) -> Result<LinearTable> {
            LK_ASSIGN_OR_RETURN(const AttentionMoeConfig config, parse(files));
            return attention_moe_table(config);
          },
          .decoder = [](const HfConfig& files) -> Result<DecoderSpec> {
            LK_ASSIGN_OR_RETURN(const AttentionMoeConfig config, parse(files));
            return attention_moe_decoder(config);
          }};
}

}  // namespace lk
