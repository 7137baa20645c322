#include <cmath>

#include "model/arch/gpt_oss.h"
#include "model/archs.h"

namespace lk {
namespace {

Result<LinearTable> table(const HfConfig& files) {
  LK_ASSIGN_OR_RETURN(const GptOssConfig config, parse_gpt_oss_config(files));
  return gpt_oss_linear_table(config);
}

Result<DecoderSpec> decoder(const HfConfig& files) {
  LK_ASSIGN_OR_RETURN(const GptOssConfig config, parse_gpt_oss_config(files));
  DecoderSpec spec{.hidden = static_cast<int>(config.hidden),
                   .vocab = static_cast<int>(config.vocab),
                   .max_positions = static_cast<int>(config.max_position_embeddings),
                   .norm_eps = config.rms_norm_eps,
                   .final_norm = "norm.weight",
                   .rope = make_rope(config.rope, config.head_dim),
                   .layers = {}};
  for (int i = 0; i < config.layers; ++i) {
    const std::string prefix = fmt::format("layers.{}.", i);
    LayerSpec& layer = spec.layers.emplace_back();
    layer.attention = {.norm = prefix + "input_layernorm.weight",
                       .heads = config.heads,
                       .kv_heads = config.kv_heads,
                       .head_dim = config.head_dim,
                       .window = config.sliding[i] ? static_cast<int>(config.sliding_window) : 0,
                       .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
                       .sinks = prefix + "self_attn.sinks"};
    layer.moe = {.norm = prefix + "post_attention_layernorm.weight",
                 .rule = RouterRule::kTopKThenSoftmax,
                 .experts = config.experts,
                 .top_k = config.experts_per_token,
                 .intermediate = static_cast<int>(config.intermediate),
                 .activation = Activation::kClampedSwiGlu,
                 .alpha = config.swiglu_alpha,
                 .limit = config.swiglu_limit};
  }
  return spec;
}

}  // namespace

extern constinit const ArchRow kArchGptOss{"gpt_oss", table, decoder};

}  // namespace lk
