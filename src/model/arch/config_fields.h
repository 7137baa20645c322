// What the architectures' configs have in common: bounds of their fields, rotary embeddings, names
// of linears. Errors name the field, what is expected and what was found. Pure functions.
#pragma once

#include <limits>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/linear_table.h"
#include "model/rope.h"

namespace lk {

// Bounds far beyond any published model, under which no product of two extents and a count
// overflows.
inline constexpr int64_t kMaxLayers = 1000, kMaxWidth = 1 << 17, kMaxExperts = 4096;
inline constexpr int64_t kMaxHeads = 1024, kMaxHeadDim = 512, kMaxVocab = 1 << 24;
inline constexpr int64_t kMaxPositions = 1 << 26;

// Stands for a default where a field must be there.
inline constexpr double kRequired = std::numeric_limits<double>::quiet_NaN();

Result<double> number_between(const JsonFields& fields, std::string_view key, double fallback,
                              double min, double max);
// A whole number from 1 to max.
Result<int> count(const JsonFields& fields, std::string_view key, int64_t max);

// num_key_value_heads, a divisor of `heads`; as many as those where the config may leave it out.
Result<int> kv_head_count(const JsonFields& fields, int heads, bool optional);
// hidden_act, if it is there, is silu.
Status expect_silu(const JsonFields& fields);

// YaRN as in the paper (arXiv 2309.00071) with the bounds rounded only if `truncate`.
struct RopeConfig {
  double theta = 0;
  bool yarn = false;  // false: the fields below are unused
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 0;
  bool truncate = true;
};

// Reads `rope_theta` and `rope_scaling`, or `rope_parameters`.
Result<RopeConfig> parse_rope(const JsonFields& fields, double default_theta = kRequired);
Rope make_rope(const RopeConfig& config, int head_dim);

// "layers.<layer>.<module>".
std::string layer_path(int layer, std::string_view module);
// The table of a decoder before its layers: prefixes, and the embedding.
LinearTable decoder_table(std::string architecture, bool tied_head, int64_t vocab, int64_t hidden);
// A layer's four attention linears.
void add_attention(LinearTable& table, int layer, int64_t hidden, int64_t query, int64_t key_value,
                   bool bias);
// The head and the last norm.
void finish_decoder_table(LinearTable& table, int64_t vocab, int64_t hidden);

// A linear that is one module.
LinearSpec module_spec(Stage stage, int layer, std::string path, int64_t out, int64_t in,
                       bool bias);

}  // namespace lk
