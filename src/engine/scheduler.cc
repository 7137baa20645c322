#include "engine/scheduler.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace lk {
namespace {

// Shorter prompts are computed again sooner than a state is copied; and the distance of snapshots
// within a long one.
constexpr int kLeastSnapshot = 64;
constexpr int kSnapshotStride = 512;

// Where the last snapshot of a prompt is taken: at least one token is left to be computed.
int last_snapshot(const Sequence& sequence) {
  const int end = (sequence.prompt_size - 1) / kKvBlockTokens * kKvBlockTokens;
  return end < kLeastSnapshot ? 0 : end;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, BlockPools& pools, StatePool& states)
    : options_(options),
      pools_(pools),
      states_(states),
      lanes_(options.adapter_slots, options.slot_patience) {
  LK_CHECK(options.max_tokens >= options.max_sequences && options.max_prompt_rows > 0);
}

void Scheduler::add(Sequence* sequence) {
  sequence->arrival = ++arrivals_;
  lanes_.add(sequence);
}

void Scheduler::remove(Sequence* sequence) {
  lanes_.remove(sequence);
  if (sequence->running) std::erase(running_, sequence);
  give_back(sequence);
}

void Scheduler::pause(Sequence* sequence) {
  remove(sequence);
  sequence->preempted = false;
}

void Scheduler::resume(Sequence* sequence) { lanes_.resume(sequence); }

std::vector<SlotBinding> Scheduler::release_unused() {
  std::vector<SlotBinding> bindings;
  lanes_.release_unused(bindings);
  return bindings;
}

// The sequence is computed from its beginning when it runs again.
void Scheduler::give_back(Sequence* sequence) {
  sequence->running = false;
  sequence->computed = 0;
  sequence->blocks.clear(pools_);
  if (sequence->state >= 0) states_.give(std::exchange(sequence->state, -1));
  sequence->state_saved = 0;
}

StepPlan& Scheduler::plan() {
  plan_ = {};
  lanes_.release_unused(plan_.bindings);
  lanes_.begin_step();
  const auto decoding = std::count_if(running_.begin(), running_.end(),
                                      [](const Sequence* s) { return s->pending() == 1; });
  Budget budget{options_.max_tokens - static_cast<int>(decoding), options_.max_prompt_rows};
  // Preemption shortens the list from its end while it is walked.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* sequence = running_[i];
    const int count = sequence->pending() == 1 ? 1 : chunk_size(*sequence, budget);
    if (count > 0 && reserve(sequence, count)) take(sequence, count, budget);
  }
  if (plan_.preempted == 0) admit(budget);
  LK_CHECK(!plan_.chunks.empty() || (running_.empty() && lanes_.waiting() == 0));
  return plan_;
}

int Scheduler::chunk_size(const Sequence& sequence, const Budget& budget) const {
  const int count = cut_for_snapshot(sequence, std::min(sequence.pending(), budget.prefill));
  const auto [first, last] = sequence.prompt_rows(count);
  return last - first <= budget.prompt_rows ? count
                                            : first + budget.prompt_rows - sequence.computed;
}

// Lets a prompt's chunks end where snapshots can be taken.
int Scheduler::cut_for_snapshot(const Sequence& sequence, int count) const {
  const int last = states_.snapshots() > 0 ? last_snapshot(sequence) : 0;
  if (sequence.computed >= last) return count;
  const int end = std::min(sequence.computed + count, last) / kKvBlockTokens * kKvBlockTokens;
  return end > sequence.computed ? end - sequence.computed : count;
}

std::optional<StateCopy> Scheduler::snapshot(Sequence& sequence) {
  const int last = last_snapshot(sequence);
  if (sequence.computed % kKvBlockTokens != 0 || sequence.computed > last) return std::nullopt;
  if (sequence.computed < last && sequence.computed - sequence.state_saved < kSnapshotStride)
    return std::nullopt;
  sequence.state_saved = sequence.computed;
  const int32_t slot = states_.save(sequence.keys[sequence.computed / kKvBlockTokens - 1]);
  if (slot < 0) return std::nullopt;
  return StateCopy{sequence.state, slot};
}

void Scheduler::take(Sequence* sequence, int count, Budget& budget) {
  const auto [first, last] = sequence->prompt_rows(count);
  budget.prompt_rows -= last - first;
  if (sequence->pending() > 1) budget.prefill -= count;
  plan_.chunks.push_back({sequence, count});
}

// Takes blocks from later arrivals if need be. False if there is none left: then the sequence waits
// with what it has, or was itself the last and waits.
bool Scheduler::reserve(Sequence* sequence, int count) {
  while (!sequence->blocks.reserve(pools_, sequence->computed, count)) {
    if (running_.back() == sequence) return false;
    preempt_last();
  }
  return true;
}

void Scheduler::preempt_last() {
  Sequence* sequence = running_.back();
  running_.pop_back();
  give_back(sequence);
  sequence->preempted = true;
  lanes_.preempt(sequence);
  ++plan_.preempted;
}

// Blocks for all present tokens and the next one of `sequence`, beside those that the running ones
// lack for theirs and one spare block for each.
bool Scheduler::fits(const Sequence& sequence) const {
  if (running_.empty()) return true;
  for (int g = 0; g < pools_.groups(); ++g) {
    const int64_t all =
        pools_.most_blocks(g, static_cast<int>(sequence.tokens.size()) + 1, options_.max_tokens);
    int64_t wanted = std::max<int64_t>(0, all - sequence.blocks.held(g));
    for (const Sequence* other : running_) {
      const int chunk = std::min(other->pending(), options_.max_tokens);
      const int most = pools_.most_blocks(g, static_cast<int>(other->tokens.size()), chunk);
      wanted += std::max(0, most - other->blocks.held(g)) + 1;
    }
    if (wanted > pools_.pool(g).free_count()) return false;
  }
  return true;
}

void Scheduler::extend_keys(Sequence& sequence, size_t blocks) const {
  const EngineAdapter* adapter = sequence.request.adapter.get();
  while (sequence.keys.size() < blocks) {
    const size_t i = sequence.keys.size();
    const PrefixKey before =
        i > 0 ? sequence.keys[i - 1]
              : hasher_.root(adapter != nullptr, adapter ? adapter->identity : 0);
    sequence.keys.push_back(hasher_.next(
        before, std::span(sequence.tokens).subspan(i * kKvBlockTokens, kKvBlockTokens)));
  }
}

// Takes what the cache has of `sequence`, but never its last token, nor prompt rows that are still
// to be scored.
void Scheduler::look_up(Sequence& sequence) {
  if (!options_.prefix_cache) return;
  int most = static_cast<int>(sequence.tokens.size()) - 1;
  if (sequence.request.prompt_logprobs && sequence.scored < sequence.prompt_size - 1)
    most = std::min(most, sequence.scored);
  const size_t blocks = most / kKvBlockTokens;
  extend_keys(sequence, blocks);
  sequence.computed = kKvBlockTokens * sequence.blocks.match(
                                           pools_, states_, std::span(sequence.keys).first(blocks));
}

// Counts what `look_up` found for a sequence that is admitted for the first time.
void Scheduler::count_look_up(Sequence& sequence) {
  if (!options_.prefix_cache || std::exchange(sequence.looked_up, true)) return;
  sequence.cached_tokens = sequence.computed;
  prefix_stats_.queries += sequence.tokens.size();
  prefix_stats_.hits += sequence.computed;
}

std::optional<StateCopy> Scheduler::computed(const Chunk& chunk) {
  Sequence& sequence = *chunk.sequence;
  const int before = sequence.computed / kKvBlockTokens;
  sequence.computed += chunk.count;
  const int now = sequence.computed / kKvBlockTokens;
  if (!options_.prefix_cache || now == before) return std::nullopt;
  extend_keys(sequence, now);
  sequence.blocks.publish(pools_, std::span(sequence.keys).first(now), before);
  return states_.snapshots() > 0 ? snapshot(sequence) : std::nullopt;
}

void Scheduler::take_state(Sequence& sequence) {
  sequence.state = states_.take();
  sequence.state_saved = sequence.computed;
  if (sequence.computed == 0) return;
  const int32_t slot = states_.find(sequence.keys[sequence.computed / kKvBlockTokens - 1]);
  plan_.restored.push_back({slot, sequence.state});
}

void Scheduler::admit(Budget& budget) {
  while (static_cast<int>(running_.size()) < options_.max_sequences && budget.prefill > 0) {
    Sequence* sequence = lanes_.next();
    if (!sequence) return;
    look_up(*sequence);
    const int count = fits(*sequence) ? chunk_size(*sequence, budget) : 0;
    if (count == 0) {
      give_back(sequence);
      return;
    }
    count_look_up(*sequence);
    LK_CHECK(sequence->blocks.reserve(pools_, sequence->computed, count));
    lanes_.admit(sequence, plan_.bindings);
    sequence->running = true;
    sequence->preempted = false;
    if (states_.used()) take_state(*sequence);
    const auto earlier = [](const Sequence* a, const Sequence* b) {
      return a->arrival < b->arrival;
    };
    running_.insert(std::lower_bound(running_.begin(), running_.end(), sequence, earlier),
                    sequence);
    // A sequence with one pending token costs one too.
    budget.prefill -= sequence->pending() == 1 ? 1 : 0;
    take(sequence, count, budget);
  }
}

}  // namespace lk
