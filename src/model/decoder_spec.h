// What the generic decoder needs to know of an architecture beside its table of linears: the
// layers' make-up and their constants. Plain values; arch/<name>.cc fills one from config.json.
#pragma once

#include <limits>
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
  bool gated = false;                    // the query linear holds q and a gate for each head
};

// Gated DeltaNet: sizes as in DeltaNetArgs; names are those of LinearTable::plain.
struct DeltaNetSpec {
  std::string norm;            // [hidden]
  std::string conv;            // [channels, 1, kernel]
  std::string a_log, dt_bias;  // [value_heads]
  std::string out_norm;        // [value_dim]
  int kernel = 0;
  int key_heads = 0, key_dim = 0, value_heads = 0, value_dim = 0;

  int channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

// Mamba-2: sizes as in MambaArgs.
struct MambaSpec {
  std::string norm;               // [hidden]
  std::string conv, conv_bias;    // [channels, 1, kernel], [channels] (empty: none)
  std::string a_log, d, dt_bias;  // [heads]
  std::string out_norm;           // [heads * head_dim]
  int kernel = 0;
  int heads = 0, head_dim = 0, groups = 0, state_dim = 0;
  float dt_min = 0, dt_max = std::numeric_limits<float>::infinity();

  int inner() const { return heads * head_dim; }
  int channels() const { return inner() + 2 * groups * state_dim; }
};

// An expert beside the routed ones that every token takes.
struct SharedExpertSpec {
  int intermediate = 0;
  bool gated_output = false;  // weighted by the sigmoid of Stage::kSharedGate
};

struct MoeSpec {
  std::string norm;  // [hidden]
  RouterRule rule = RouterRule::kTopKThenSoftmax;
  int experts = 0, top_k = 0, intermediate = 0;
  Activation activation = Activation::kClampedSwiGlu;
  float alpha = 0, limit = 0;
  std::string correction{};  // [experts], of kSigmoidThenTopK; empty: none
  int groups = 1, top_groups = 1;
  bool normalized = true;
  float weight_scale = 1;
  int latent = 0;  // width that the routed experts work in; 0: the hidden size
  std::optional<SharedExpertSpec> shared{};
};

// Parts run in this order; a layer may lack any of them.
struct LayerSpec {
  std::optional<AttentionSpec> attention;
  std::optional<DeltaNetSpec> delta_net{};
  std::optional<MambaSpec> mamba{};
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
