#include "engine/engine.h"

#include <time.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "engine/kv_plan.h"
#include "engine/logprobs.h"
#include "engine/machine_limits.h"

namespace lk {
namespace {

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Of logits for prompt logprobs in one step, so that a large vocabulary does not ask for gigabytes.
constexpr size_t kPromptRowBytes = size_t{64} << 20;

SchedulerOptions scheduler_options(const EngineOptions& options, int vocab) {
  const size_t rows = kPromptRowBytes / (sizeof(float) * static_cast<size_t>(vocab));
  return {.max_sequences = options.max_sequences,
          .max_tokens = options.max_step_tokens,
          .max_prompt_rows =
              static_cast<int>(std::clamp<size_t>(rows, 16, options.max_step_tokens + 16)),
          .adapter_slots = options.adapter_slots,
          .prefix_cache = options.prefix_cache};
}

}  // namespace

int default_step_tokens(const Device& device) { return device.is_host() ? 512 : 4096; }

Result<std::unique_ptr<Engine>> Engine::create(Model& model, Vocabulary vocabulary,
                                               const EngineOptions& wanted) {
  EngineOptions options = wanted;
  const ModelInfo& info = model.info();
  if (options.max_model_len == 0) options.max_model_len = info.max_positions;
  if (options.max_model_len < 1 || options.max_model_len > info.max_positions) {
    return invalid("max_model_len must be in [1, {}], what the model was made for, not {}",
                   info.max_positions, options.max_model_len);
  }
  if (options.max_sequences < 1)
    return invalid("max_num_seqs must be at least 1, not {}", options.max_sequences);
  if (options.max_step_tokens < options.max_sequences) {
    return invalid("max_num_batched_tokens must be at least max_num_seqs ({}), not {}",
                   options.max_sequences, options.max_step_tokens);
  }
  if (options.max_step_tokens > model.most_step_tokens()) {
    return invalid("max_num_batched_tokens must be at most {} on this device, not {}",
                   model.most_step_tokens(), options.max_step_tokens);
  }
  if (options.adapter_slots < 0) return invalid("adapter_slots must not be negative");
  const size_t available =
      model.device().is_host() ? available_memory() : model.device().free_memory();
  const size_t bytes = options.kv_bytes > 0 ? options.kv_bytes : available / 2;
  const KvDemand demand{options.max_sequences, options.max_model_len, options.max_step_tokens,
                        options.prefix_cache};
  LK_ASSIGN_OR_RETURN(const KvPlan plan, plan_kv(model.kv_layout(), demand, bytes));
  if (plan.states > 0) options.max_sequences = plan.states;
  try {
    return std::unique_ptr<Engine>(new Engine(model, std::move(vocabulary), options, plan));
  } catch (const std::bad_alloc&) {
    size_t wanted_bytes = model.kv_layout().state_bytes() * (plan.states + plan.snapshots);
    for (size_t g = 0; g < plan.blocks.size(); ++g)
      wanted_bytes += model.kv_layout().block_bytes(static_cast<int>(g)) * plan.blocks[g];
    return fail(ErrorKind::kResource,
                "memory ran out: the KV cache takes {} bytes beside {} bytes of weights; lower "
                "--max-model-len or --max-num-seqs",
                wanted_bytes, info.weight_bytes);
  }
}

Engine::Engine(Model& model, Vocabulary vocabulary, const EngineOptions& options,
               const KvPlan& plan)
    : model_(model),
      vocabulary_(std::move(vocabulary)),
      options_(options),
      cache_(model.kv_layout(), plan.blocks, plan.states + plan.snapshots, model.device()),
      pools_(model.kv_layout(), plan.blocks),
      states_(plan.states, plan.snapshots),
      scheduler_(scheduler_options(options, model.info().vocab), pools_, states_),
      output_(vocabulary_, model.info().eos_token_ids, model.info().vocab) {}

Status Engine::check(const Request& request) const {
  return check_request(request, {.vocab = model_.info().vocab,
                                 .max_model_len = options_.max_model_len,
                                 .adapter_slots = options_.adapter_slots});
}

Result<std::unique_ptr<Sequence>> Engine::prepare(Request request) const {
  LK_RETURN_IF_ERROR(check(request));
  auto sequence = std::make_unique<Sequence>();
  sequence->times.arrival = Clock::now();
  sequence->prompt_size = static_cast<int>(request.prompt.size());
  sequence->max_length =
      sequence->prompt_size + resolved_max_tokens(request, options_.max_model_len);
  sequence->tokens = std::exchange(request.prompt, {});
  if (has_penalties(request.sampling)) {
    for (int32_t id : sequence->tokens) sequence->counts.emplace(id, 0);
  }
  sequence->stop = StopMatcher(request.stop, request.include_stop);
  if (vocabulary_.text) sequence->text = vocabulary_.text(request.skip_special);
  sequence->request = std::move(request);
  return sequence;
}

void Engine::add(RequestId id, std::unique_ptr<Sequence> sequence) {
  sequence->id = id;
  Sequence& added = *sequence;
  LK_CHECK(sequences_.emplace(id, std::move(sequence)).second);
  scheduler_.add(&added);
}

Result<RequestId> Engine::submit(Request request) {
  LK_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> sequence, prepare(std::move(request)));
  const RequestId id = next_id_++;
  add(id, std::move(sequence));
  return id;
}

bool Engine::cancel(RequestId id) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end()) return false;
  if (at->second->paused)
    --paused_;
  else
    scheduler_.remove(at->second.get());
  sequences_.erase(at);
  return true;
}

void Engine::pause(RequestId id) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end() || at->second->paused) return;
  scheduler_.pause(at->second.get());
  at->second->paused = true;
  ++paused_;
}

void Engine::resume(RequestId id) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end() || !at->second->paused) return;
  scheduler_.resume(at->second.get());
  at->second->paused = false;
  --paused_;
}

void Engine::release_unused_adapters() {
  for (const SlotBinding& binding : scheduler_.release_unused())
    model_.set_slot(binding.slot, nullptr);
}

void Engine::step(std::vector<TokenEvent>& events) {
  if (idle()) return;
  StepPlan& plan = scheduler_.plan();
  for (const SlotBinding& binding : plan.bindings)
    model_.set_slot(binding.slot, binding.adapter ? binding.adapter->prepared : nullptr);
  // Only requests may hold an adapter: if this step ends the last one, no other comes to let go of
  // it, and who waits for its place in memory would wait for ever.
  plan.bindings.clear();
  events.reserve(events.size() + plan.chunks.size());
  try {
    compute(plan);
  } catch (const DeviceError&) {
    throw;  // nothing will be computed any more
  } catch (const std::exception& e) {
    for (const Chunk& chunk : plan.chunks)
      fail_request(*chunk.sequence, fmt::format("a step of the model failed: {}", e.what()),
                   events);
    return;
  }
  const size_t vocab = model_.info().vocab;
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    Sequence& sequence = *plan.chunks[i].sequence;
    if (const auto copy = scheduler_.computed(plan.chunks[i]))
      cache_.copy_state(copy->from, copy->to);
    try {
      take_rows(sequence, rows_[i], logits_.as<float>() + rows_[i].first * vocab, events);
    } catch (const DeviceError&) {
      throw;
    } catch (const std::exception& e) {
      fail_request(sequence, fmt::format("the next token could not be chosen: {}", e.what()),
                   events);
    }
  }
}

void Engine::compute(const StepPlan& plan) {
  const Clock::time_point now = Clock::now();
  const Batch& batch = builder_.build(plan.chunks, pools_.groups(), rows_);
  ++stats_.steps;
  stats_.step_tokens = batch.tokens;
  stats_.all_tokens += batch.tokens;
  const auto bound =
      std::lower_bound(kStepTokenBounds.begin(), kStepTokenBounds.end(), batch.tokens);
  ++stats_.steps_by_tokens[static_cast<size_t>(bound - kStepTokenBounds.begin())];
  stats_.preemptions += plan.preempted;
  for (const Chunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    if (sequence.times.scheduled == Clock::time_point{}) sequence.times.scheduled = now;
    const int prompt_left = std::max(0, sequence.prompt_size - sequence.computed);
    stats_.prompt_tokens += std::min(prompt_left, chunk.count);
  }
  logits_.reserve(std::max<size_t>(1, batch.logit_count) * model_.info().vocab * sizeof(float));
  choose_on_device(plan, batch.logit_count);
  const double before = thread_cpu_seconds();
  for (const StateCopy& copy : plan.restored) cache_.copy_state(copy.from, copy.to);
  if (model_.chooses()) {
    model_.forward_and_choose(batch, cache_,
                              {.choices = choices_,
                               .chosen = chosen_,
                               .top = top_,
                               .logits = logits_.as<float>(),
                               .results = results_.data(),
                               .best = best_.data()});
  } else {
    model_.forward(batch, cache_, logits_.as<float>());
  }
  stats_.forward_cpu_seconds += thread_cpu_seconds() - before;
}

// Rows that need not be changed leave their logits on a device that chooses.
void Engine::choose_on_device(const StepPlan& plan, int rows) {
  choices_.clear();
  chosen_.assign(rows, 0);
  results_.assign(rows, {});
  top_ = 0;
  if (!model_.chooses()) return;
  choices_.resize(rows);
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    if (!rows_[i].samples) continue;
    const int row = rows_[i].first + rows_[i].prompt_count;
    if (const auto choice = output_.row_choice(*plan.chunks[i].sequence, model_.most_top())) {
      choices_[row] = *choice;
      chosen_[row] = 1;
      top_ = std::max(top_, choice->top);
    }
  }
  best_.assign(size_t{1} * rows * top_, {});
}

void Engine::fail_request(Sequence& sequence, std::string error, std::vector<TokenEvent>& events) {
  TokenEvent event;
  event.request = sequence.id;
  event.finish = FinishReason::kError;
  event.error = std::move(error);
  finish(sequence, std::move(event), events);
}

void Engine::finish(Sequence& sequence, TokenEvent&& event, std::vector<TokenEvent>& events) {
  event.times = sequence.times;
  LK_CHECK(cancel(sequence.id));
  events.push_back(std::move(event));
}

// Turns a chunk's logits into an event, if there is anything to tell, and ends the sequence if it
// is done.
void Engine::take_rows(Sequence& sequence, const ChunkRows& rows, float* logits,
                       std::vector<TokenEvent>& events) {
  const int vocab = model_.info().vocab;
  TokenEvent event;
  event.request = sequence.id;
  event.cached_tokens = sequence.cached_tokens;
  for (int i = 0; i < rows.prompt_count; ++i, logits += vocab) {
    const int32_t next = sequence.tokens[rows.prompt_first + i + 1];
    const double log_sum = log_sum_exp(logits, vocab);
    event.prompt_logprobs.push_back(static_cast<float>(logits[next] - log_sum));
    const int top = std::max(sequence.request.logprobs, sequence.request.prompt_top);
    if (top > 0) event.prompt_top.push_back(top_logprobs(logits, vocab, top, log_sum));
    if (sequence.request.prompt_ranks) event.prompt_ranks.push_back(rank_of(logits, vocab, next));
  }
  sequence.scored = std::max(sequence.scored, rows.prompt_first + rows.prompt_count);
  if (rows.samples) {
    const int row = rows.first + rows.prompt_count;
    const auto best = std::span(best_).subspan(size_t{1} * row * top_, top_);
    if (!chosen_[row] ||
        !output_.take_choice(sequence, choices_[row], results_[row], best, event)) {
      if (chosen_[row]) model_.read_row(row, logits);
      output_.next_token(sequence, logits, event);
    }
    stats_.output_tokens += event.token >= 0;
    if (sequence.output_size() == 1) sequence.times.first_token = Clock::now();
  } else if (sequence.pending() == 0) {
    event.finish = FinishReason::kLength;  // max_tokens is 0
  }
  if (event.finish != FinishReason::kNone) {
    finish(sequence, std::move(event), events);
  } else if (rows.samples || rows.prompt_count > 0) {
    sequence.cached_tokens = 0;
    events.push_back(std::move(event));
  }
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.running = scheduler_.running();
  stats.waiting = scheduler_.waiting();
  stats.paused = paused_;
  for (int g = 0; g < pools_.groups(); ++g)
    stats.free_blocks.push_back(pools_.pool(g).free_count());
  stats.prefix = scheduler_.prefix_stats();
  stats.adapters = scheduler_.loads();
  return stats;
}

std::vector<int> Engine::total_blocks() const {
  std::vector<int> blocks;
  for (int g = 0; g < pools_.groups(); ++g) blocks.push_back(pools_.pool(g).size());
  return blocks;
}

std::vector<RequestId> Engine::requests() const {
  std::vector<RequestId> ids;
  for (const auto& [id, sequence] : sequences_) ids.push_back(id);
  return ids;
}

}  // namespace lk
