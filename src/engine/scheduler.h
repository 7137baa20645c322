// Decides what each step computes: which sequences, how many tokens of each. Used by the engine's
// thread only.
//
// One step mixes decoding (one token) and prefill (chunks). Running sequences come first, in order
// of arrival; decoding always gets its token, prefill shares what the token budget leaves. Then
// waiting sequences are admitted (lanes.h says in which order) while there are places, tokens, and
// KV blocks for all their present tokens beside what running sequences are still going to need for
// theirs. A running sequence that finds no block for its next token takes those of the one that
// arrived last: that one gives everything back and is computed again later. The earliest never
// loses its blocks and the pools hold the longest possible sequence, so the work always goes on. On
// the CPU computing again gives the same bits, as chunks and company do not enter them.
//
// Where a model has recurrent layers a shared prefix needs the state at its end. States are kept
// (copied) where a prompt's chunk ends on a full block: at the prompt's last one, which the next
// turn of a conversation goes on from, and about every 512 tokens before, for what only begins
// alike. Never one that decoding led to.
#pragma once

#include <optional>
#include <vector>

#include "cache/block_pool.h"
#include "cache/state_pool.h"
#include "engine/lanes.h"
#include "engine/sequence.h"

namespace lk {

struct SchedulerOptions {
  int max_sequences = 32;
  int max_tokens = 512;       // of one step; at least max_sequences
  int max_prompt_rows = 512;  // prompt rows of one step that get logits; at least 1
  int adapter_slots = 16;
  int slot_patience = 256;  // steps
  bool prefix_cache = true;
};

// Tokens that were looked for in the prefix cache by requests that came to run, and found.
struct PrefixStats {
  uint64_t queries = 0, hits = 0;
};

// `count` tokens of `sequence` from sequence->computed on.
struct Chunk {
  Sequence* sequence = nullptr;
  int count = 0;
};

struct StepPlan {
  std::vector<Chunk> chunks;
  std::vector<SlotBinding> bindings;
  std::vector<StateCopy> restored;  // to be copied before the step
  int preempted = 0;
};

class Scheduler {
 public:
  // The pools must outlive the scheduler. `states`, if used, has a slot for each running sequence.
  Scheduler(const SchedulerOptions& options, BlockPools& pools, StatePool& states);

  void add(Sequence* sequence);
  // Finished or cancelled; its blocks and its share of a slot are free at once. Not between `plan`
  // and the end of that step.
  void remove(Sequence* sequence);
  // Out of the batch, with its blocks given back, until it is resumed. Not between `plan` and the
  // end of that step; a paused sequence is not removed but forgotten by its owner.
  void pause(Sequence* sequence);
  // It waits again, at its place by arrival.
  void resume(Sequence* sequence);
  // Slots to be emptied before the next step: their adapters are gone (lanes.h).
  std::vector<SlotBinding> release_unused();
  // Every chunk's blocks are reserved. Not empty if there is anything to do.
  StepPlan& plan();
  // The chunk's keys and values are in the cache: advances `computed`, and full blocks can be
  // shared from now on. A copy is given if the state that the chunk led to is to be kept; to be
  // made before the next call.
  std::optional<StateCopy> computed(const Chunk& chunk);

  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return lanes_.waiting(); }
  std::vector<AdapterLoad> loads() const { return lanes_.loads(); }
  const PrefixStats& prefix_stats() const { return prefix_stats_; }

 private:
  struct Budget {
    int prefill = 0;  // tokens
    int prompt_rows = 0;
  };
  int chunk_size(const Sequence& sequence, const Budget& budget) const;
  int cut_for_snapshot(const Sequence& sequence, int count) const;
  std::optional<StateCopy> snapshot(Sequence& sequence);
  void take_state(Sequence& sequence);
  void take(Sequence* sequence, int count, Budget& budget);
  bool reserve(Sequence* sequence, int count);
  bool fits(const Sequence& sequence) const;
  void preempt_last();
  void give_back(Sequence* sequence);
  void extend_keys(Sequence& sequence, size_t blocks) const;
  void look_up(Sequence& sequence);
  void count_look_up(Sequence& sequence);
  void admit(Budget& budget);

  SchedulerOptions options_;
  BlockPools& pools_;
  StatePool& states_;
  AdapterLanes lanes_;
  std::vector<Sequence*> running_;  // by arrival
  uint64_t arrivals_ = 0;
  PrefixHasher hasher_;
  PrefixStats prefix_stats_;
  StepPlan plan_;
};

}  // namespace lk
