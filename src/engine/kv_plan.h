// How many KV blocks each group gets from a number of bytes. Pure functions.
#pragma once

#include <cstddef>
#include <vector>

#include "base/result.h"
#include "cache/kv_cache.h"

namespace lk {

struct KvDemand {
  int max_sequences = 0;
  int max_length = 0;  // tokens of one sequence
  int max_step_tokens = 0;
  bool prefix_cache = false;
};

// Blocks for `demand` in full if they take no more than `bytes`, otherwise fewer: groups with a
// window keep what their windows take, the others share the rest. With a prefix cache the windows
// get up to four times as much: a prefix can be taken up only where the window before its
// end is still there, and a window's blocks come and go with every token. Errors: kResource if
// `bytes` do not hold one sequence of max_length.
Result<std::vector<int>> plan_kv_blocks(const KvLayout& layout, const KvDemand& demand,
                                        size_t bytes);

// Bytes that one more token of a long sequence takes (groups without a window).
size_t kv_bytes_per_token(const KvLayout& layout);
// Bytes of one sequence of `tokens` tokens while it decodes.
size_t kv_bytes_of_sequence(const KvLayout& layout, int tokens);

}  // namespace lk
