#include "engine/scheduler.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace lk {

Scheduler::Scheduler(const SchedulerOptions& options, BlockPools& pools)
    : options_(options), pools_(pools), lanes_(options.adapter_slots, options.slot_patience) {
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
  const int count = std::min(sequence.pending(), budget.prefill);
  const auto [first, last] = sequence.prompt_rows(count);
  return last - first <= budget.prompt_rows ? count
                                            : first + budget.prompt_rows - sequence.computed;
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
  sequence.computed =
      kKvBlockTokens * sequence.blocks.match(pools_, std::span(sequence.keys).first(blocks));
}

// Counts what `look_up` found for a sequence that is admitted for the first time.
void Scheduler::count_look_up(Sequence& sequence) {
  if (!options_.prefix_cache || std::exchange(sequence.looked_up, true)) return;
  sequence.cached_tokens = sequence.computed;
  prefix_stats_.queries += sequence.tokens.size();
  prefix_stats_.hits += sequence.computed;
}

void Scheduler::computed(const Chunk& chunk) {
  Sequence& sequence = *chunk.sequence;
  const int before = sequence.computed / kKvBlockTokens;
  sequence.computed += chunk.count;
  const int now = sequence.computed / kKvBlockTokens;
  if (!options_.prefix_cache || now == before) return;
  extend_keys(sequence, now);
  sequence.blocks.publish(pools_, std::span(sequence.keys).first(now), before);
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
