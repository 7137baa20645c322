// What the architectures' configs have in common: bounds of their fields, rotary embeddings, names
// of linears. Errors name the field, what is expected and what was found. Pure functions.
#pragma once

#include <initializer_list>
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
inline constexpr int64_t kMaxPositions = 1 << 26, kMaxConvolution = 64;

// Stands for a default where a field must be there.
inline constexpr double kRequired = std::numeric_limits<double>::quiet_NaN();

Result<double> number_between(const JsonFields& fields, std::string_view key, double fallback,
                              double min, double max);
// A whole number from 1 to max.
Result<int> count(const JsonFields& fields, std::string_view key, int64_t max);

// num_key_value_heads, a divisor of `heads`; as many as those where the config may leave it out.
Result<int> kv_head_count(const JsonFields& fields, int heads, bool optional);
// The field, if it is there, is `expected`.
Status expect_string(const JsonFields& fields, std::string_view key, std::string_view expected);

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

// Reads `rope_theta` and `rope_scaling`, or `rope_parameters`; `also` are settings beside the known
// ones that the caller reads.
Result<RopeConfig> parse_rope(const JsonFields& fields, double default_theta = kRequired,
                              std::initializer_list<std::string_view> also = {});
// Over the first `dim` dims of each head.
Rope make_rope(const RopeConfig& config, int dim);

// "layers.<layer>.<module>".
std::string layer_path(int layer, std::string_view module);
// The table of a decoder before its layers: prefixes, and the embedding.
LinearTable decoder_table(std::string architecture, bool tied_head, int64_t vocab, int64_t hidden);
struct AttentionShape {
  int64_t hidden = 0;
  int64_t query = 0, key_value = 0;  // heads times head_dim
  bool bias = false;
  bool gated = false;                     // the query linear holds a gate as well
  std::string_view module = "self_attn";  // below the layer
};
// A layer's four attention linears.
void add_attention(LinearTable& table, int layer, const AttentionShape& shape);
// The head and the last norm.
void finish_decoder_table(LinearTable& table, int64_t vocab, int64_t hidden);

// A linear that is one module.
LinearSpec module_spec(Stage stage, int layer, std::string path, int64_t out, int64_t in,
                       bool bias);

}  // namespace lk
