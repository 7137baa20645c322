// How many KV blocks each group gets from a number of bytes, and how many states of recurrent
// layers are kept. Pure functions.
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

struct KvPlan {
  std::vector<int> blocks;  // by KV group
  int states = 0;           // sequences that can run at once; 0: without recurrent layers
  int snapshots = 0;        // states kept for the prefix cache
};

// Blocks for `demand` in full if they take no more than `bytes`, otherwise fewer: groups with a
// window keep what their windows take, the others share the rest. With a prefix cache the windows
// get up to four times as much: a prefix can be taken up only where the window before its
// end is still there, and a window's blocks come and go with every token. With recurrent layers
// every running sequence takes a state too: beyond what one sequence needs, states take at most
// half of `bytes`, so fewer sequences than demanded may run, and with a prefix cache snapshots a
// quarter of the rest. Errors: kResource if `bytes` do not hold one sequence of max_length.
Result<KvPlan> plan_kv(const KvLayout& layout, const KvDemand& demand, size_t bytes);
// The fewest bytes with which plan_kv succeeds.
size_t least_kv_bytes(const KvLayout& layout, const KvDemand& demand);

// Bytes that one more token of a long sequence takes (groups without a window).
size_t kv_bytes_per_token(const KvLayout& layout);
// Bytes of one sequence of `tokens` tokens while it decodes, with its state.
size_t kv_bytes_of_sequence(const KvLayout& layout, int tokens);

}  // namespace lk
