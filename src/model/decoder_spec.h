// What the generic decoder needs to know of an architecture beside its table of linears: the
// layers' make-up and their constants. Plain values; arch/<name>.cc fills one from config.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/rope.h"

namespace lk {

// Names of norms and sinks are those of LinearTable::plain.
struct AttentionSpec {
  std::string norm;  // [hidden]
  int heads = 0, kv_heads = 0, head_dim = 0;
  int window = 0;                        // keys a query sees at most, itself included; 0: all
  float scale = 0;                       // on q . k
  std::string sinks;                     // [heads]; empty: the layer has none
  std::string query_norm{}, key_norm{};  // [head_dim], or of all heads; empty: none
  bool norm_whole = false;               // one norm over all heads
  float clip = 0;                        // on q, k and v after the norms; 0: none
};

struct MoeSpec {
  std::string norm;  // [hidden]
  RouterRule rule = RouterRule::kTopKThenSoftmax;
  int experts = 0, top_k = 0, intermediate = 0;
  Activation activation = Activation::kClampedSwiGlu;
  float alpha = 0, limit = 0;
};

// Parts run in this order; a layer may lack any of them.
struct LayerSpec {
  std::optional<AttentionSpec> attention;
  std::optional<MoeSpec> moe;
};

struct DecoderSpec {
  int hidden = 0, vocab = 0;
  int max_positions = 0;
  float norm_eps = 0;
  std::string final_norm;  // [hidden]
  Rope rope;               // of every attention layer
  std::vector<LayerSpec> layers;
};

}  // namespace lk
