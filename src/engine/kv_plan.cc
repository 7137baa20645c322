#include "engine/kv_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "cache/block_pool.h"

namespace lk {
namespace {

constexpr int kWindowsToKeep = 4;
// Memory is only taken as they are; the index of more would be all that they cost.
constexpr size_t kMostSnapshots = 1024;

size_t total_bytes(const KvLayout& layout, const std::vector<int>& blocks) {
  size_t bytes = 0;
  for (size_t g = 0; g < blocks.size(); ++g)
    bytes += layout.block_bytes(static_cast<int>(g)) * blocks[g];
  return bytes;
}

// Blocks that `sequences` decoding sequences of full length hold, with room for one step's prefill
// and a spare block each.
std::vector<int> blocks_for_sequences(const KvLayout& layout, const KvDemand& demand,
                                      int sequences) {
  const BlockPools none(layout, std::vector<int>(layout.groups.size(), 0));
  std::vector<int> blocks;
  for (int g = 0; g < none.groups(); ++g) {
    const int64_t one = none.most_blocks(g, demand.max_length, demand.max_step_tokens);
    const int64_t decoding = std::min<int64_t>(one, none.most_blocks(g, demand.max_length, 1) + 1);
    const int64_t wanted = one + decoding * (sequences - 1);
    blocks.push_back(static_cast<int>(
        std::min<int64_t>(wanted, std::numeric_limits<int32_t>::max() / kKvBlockTokens)));
  }
  return blocks;
}

// Blocks for `demand` in full if they take no more than `bytes`, which hold one sequence.
std::vector<int> plan_kv_blocks(const KvLayout& layout, const KvDemand& demand, size_t bytes) {
  std::vector<int> blocks = blocks_for_sequences(layout, demand, demand.max_sequences);
  if (demand.prefix_cache && !blocks.empty()) {
    const int most = *std::max_element(blocks.begin(), blocks.end());
    for (int& count : blocks) count = std::min(most, kWindowsToKeep * count);
  }
  if (total_bytes(layout, blocks) <= bytes) return blocks;
  const std::vector<int> least = blocks_for_sequences(layout, demand, 1);
  const size_t least_bytes = total_bytes(layout, least);
  // Windows first: without them no sequence runs. They get at most half of what is left beyond one
  // sequence.
  size_t left = bytes - least_bytes;
  size_t windowed = 0, growing = 0;
  for (size_t g = 0; g < blocks.size(); ++g) {
    const size_t more = layout.block_bytes(static_cast<int>(g)) * (blocks[g] - least[g]);
    (layout.groups[g].window > 0 ? windowed : growing) += more;
  }
  const size_t windowed_share =
      growing == 0 ? std::min(windowed, left) : std::min(windowed, left / 2);
  const size_t growing_share = std::min(growing, left - windowed_share);
  for (size_t g = 0; g < blocks.size(); ++g) {
    const bool window = layout.groups[g].window > 0;
    const double ratio = static_cast<double>(window ? windowed_share : growing_share) /
                         static_cast<double>(std::max<size_t>(1, window ? windowed : growing));
    blocks[g] = least[g] + static_cast<int>((blocks[g] - least[g]) * ratio);
  }
  return blocks;
}

}  // namespace

size_t least_kv_bytes(const KvLayout& layout, const KvDemand& demand) {
  return total_bytes(layout, blocks_for_sequences(layout, demand, 1)) + layout.state_bytes();
}

Result<KvPlan> plan_kv(const KvLayout& layout, const KvDemand& demand, size_t bytes) {
  KvPlan plan;
  const size_t least = least_kv_bytes(layout, demand);
  if (bytes < least) {
    return fail(
        ErrorKind::kResource,
        "the KV cache of one sequence of {} tokens takes {}, but there is room for {}: give "
        "more (--kv-cache-memory) or lower the longest context (--max-model-len)",
        demand.max_length, format_bytes(least), format_bytes(bytes));
  }
  KvDemand kv = demand;
  if (const size_t state = layout.state_bytes(); state > 0) {
    // What is left when one sequence has all that it needs.
    size_t left = bytes - least;
    const size_t more = std::min(left, bytes / 2) / state;
    plan.states =
        static_cast<int>(1 + std::min<size_t>(more, std::max(0, demand.max_sequences - 1)));
    left -= (plan.states - 1) * state;
    if (demand.prefix_cache)
      plan.snapshots = static_cast<int>(std::min<size_t>(kMostSnapshots, left / 4 / state));
    bytes -= (plan.states + plan.snapshots) * state;
    kv.max_sequences = plan.states;
  }
  plan.blocks = plan_kv_blocks(layout, kv, bytes);
  return plan;
}

size_t kv_bytes_per_token(const KvLayout& layout) {
  size_t bytes = 0;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    if (layout.groups[g].window == 0)
      bytes += layout.block_bytes(static_cast<int>(g)) / kKvBlockTokens;
  }
  return bytes;
}

size_t kv_bytes_of_sequence(const KvLayout& layout, int tokens) {
  const BlockPools none(layout, std::vector<int>(layout.groups.size(), 0));
  size_t bytes = layout.state_bytes();
  for (int g = 0; g < none.groups(); ++g)
    bytes += layout.block_bytes(g) * none.most_blocks(g, tokens, 1);
  return bytes;
}

}  // namespace lk
