// gpt-oss: its config and the table of its linears. Plain values; functions are pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/linear_table.h"
#include "model/arch/config_fields.h"

namespace lk {

struct GptOssConfig {
  int layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;  // of one expert
  int experts = 0;
  int experts_per_token = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t vocab = 0;
  int64_t max_position_embeddings = 0;
  std::vector<bool> sliding;   // [layers]
  int64_t sliding_window = 0;  // keys that a token sees in a sliding layer, itself included
  float rms_norm_eps = 0;
  float swiglu_limit = 7.0f;
  float swiglu_alpha = 1.702f;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool attention_bias = true;
};

// Reads config.json, with `rope_theta` and `rope_scaling` or with `rope_parameters`. Errors: a
// field missing or out of range (kInvalid), or asking for what is not implemented (kUnsupported);
// the sentence names field, expected and found.
Result<GptOssConfig> parse_gpt_oss_config(const HfConfig& config);

// Every linear and plain tensor, in forward order, under every name it is known by.
LinearTable gpt_oss_linear_table(const GptOssConfig& config);

}  // namespace lk
