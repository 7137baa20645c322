#include "engine/engine.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/kv_plan.h"
#include "engine/logprobs.h"

namespace lk {
namespace {

// Of logits for prompt logprobs in one step, so that a large vocabulary does not ask for gigabytes.
constexpr size_t kPromptRowBytes = size_t{64} << 20;

SchedulerOptions scheduler_options(const EngineOptions& options, int vocab) {
  const size_t rows = kPromptRowBytes / (sizeof(float) * static_cast<size_t>(vocab));
  return {.max_sequences = options.max_sequences,
          .max_tokens = options.max_step_tokens,
          .max_prompt_rows =
              static_cast<int>(std::clamp<size_t>(rows, 16, options.max_step_tokens + 16)),
          .adapter_slots = options.adapter_slots};
}

Status check_ids(const std::vector<int32_t>& ids, int vocab, std::string_view field) {
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab)
      return invalid("{} holds {}, outside the vocabulary of {} ids", field, id, vocab);
  }
  return {};
}

}  // namespace

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
  if (options.adapter_slots < 0) return invalid("adapter_slots must not be negative");
  const size_t bytes = options.kv_bytes > 0 ? options.kv_bytes : available_memory() / 2;
  const KvDemand demand{options.max_sequences, options.max_model_len, options.max_step_tokens};
  LK_ASSIGN_OR_RETURN(const std::vector<int> blocks,
                      plan_kv_blocks(model.kv_layout(), demand, bytes));
  return std::unique_ptr<Engine>(new Engine(model, std::move(vocabulary), options, blocks));
}

Engine::Engine(Model& model, Vocabulary vocabulary, const EngineOptions& options,
               const std::vector<int>& blocks)
    : model_(model),
      vocabulary_(std::move(vocabulary)),
      options_(options),
      cache_(model.kv_layout(), blocks),
      pools_(model.kv_layout(), blocks),
      scheduler_(scheduler_options(options, model.info().vocab), pools_),
      sampler_(model.info().vocab) {}

Result<RequestId> Engine::submit(Request request) {
  const int vocab = model_.info().vocab;
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return invalid("the prompt is empty");
  if (request.max_tokens < -1)
    return invalid("max_tokens must not be negative, it is {}", request.max_tokens);
  if (request.max_tokens == -1)
    request.max_tokens = static_cast<int>(std::max<int64_t>(1, options_.max_model_len - length));
  if (length + request.max_tokens > options_.max_model_len) {
    return invalid(
        "the prompt of {} tokens and max_tokens {} make {} tokens, the longest context is {}",
        length, request.max_tokens, length + request.max_tokens, options_.max_model_len);
  }
  LK_RETURN_IF_ERROR(check_ids(request.prompt, vocab, "the prompt"));
  LK_RETURN_IF_ERROR(check_ids(request.stop_ids, vocab, "stop_token_ids"));
  LK_RETURN_IF_ERROR(check_sampling(request.sampling));
  if (request.logprobs < -1 || request.logprobs > kMaxTopLogprobs) {
    return invalid("logprobs must be in [0, {}], not {}", kMaxTopLogprobs, request.logprobs);
  }
  if (std::any_of(request.stop.begin(), request.stop.end(),
                  [](const std::string& s) { return s.empty(); })) {
    return invalid("a stop string must not be empty");
  }
  if (request.adapter && options_.adapter_slots == 0)
    return invalid("the engine has no adapter slots");

  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->tokens = request.prompt;
  sequence->prompt_size = static_cast<int>(length);
  sequence->max_length = static_cast<int>(length) + request.max_tokens;
  if (has_penalties(request.sampling)) {
    for (int32_t id : request.prompt) sequence->counts.emplace(id, 0);
  }
  sequence->stop = StopMatcher(request.stop);
  if (vocabulary_.text) sequence->text = vocabulary_.text();
  sequence->request = std::move(request);
  scheduler_.add(sequence.get());
  const RequestId id = sequence->id;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

bool Engine::cancel(RequestId id) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end()) return false;
  scheduler_.remove(at->second.get());
  sequences_.erase(at);
  return true;
}

void Engine::step(std::vector<TokenEvent>& events) {
  if (idle()) return;
  const StepPlan& plan = scheduler_.plan();
  for (const SlotBinding& binding : plan.bindings)
    model_.set_slot(binding.slot, binding.adapter->prepared);
  const Batch& batch = builder_.build(plan.chunks, pools_.groups(), rows_);
  const size_t vocab = model_.info().vocab;
  logits_.reserve(std::max<size_t>(1, batch.logit_count) * vocab * sizeof(float));
  model_.forward(batch, cache_, logits_.as<float>());
  ++stats_.steps;
  stats_.preemptions += plan.preempted;
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    Sequence& sequence = *plan.chunks[i].sequence;
    const int prompt_left = std::max(0, sequence.prompt_size - sequence.computed);
    stats_.prompt_tokens += std::min(prompt_left, plan.chunks[i].count);
    sequence.computed += plan.chunks[i].count;
    take_rows(sequence, rows_[i], logits_.as<float>() + rows_[i].first * vocab, events);
  }
}

// Turns a chunk's logits into an event, if there is anything to tell, and ends the sequence if it
// is done.
void Engine::take_rows(Sequence& sequence, const ChunkRows& rows, float* logits,
                       std::vector<TokenEvent>& events) {
  const int vocab = model_.info().vocab;
  TokenEvent event;
  event.request = sequence.id;
  for (int i = 0; i < rows.prompt_count; ++i, logits += vocab) {
    const int32_t next = sequence.tokens[rows.prompt_first + i + 1];
    event.prompt_logprobs.push_back(static_cast<float>(logits[next] - log_sum_exp(logits, vocab)));
  }
  sequence.scored = std::max(sequence.scored, rows.prompt_first + rows.prompt_count);
  if (rows.samples) {
    choose_token(sequence, logits, event);
  } else if (sequence.pending() == 0) {
    event.finish = FinishReason::kLength;  // max_tokens is 0
  }
  const bool news = rows.samples || rows.prompt_count > 0 || event.finish != FinishReason::kNone;
  if (event.finish != FinishReason::kNone) LK_CHECK(cancel(sequence.id));
  if (news) events.push_back(std::move(event));
}

void Engine::choose_token(Sequence& sequence, float* logits, TokenEvent& event) {
  const Request& request = sequence.request;
  const int vocab = model_.info().vocab;
  const double log_sum = request.logprobs >= 0 ? log_sum_exp(logits, vocab) : 0;
  for (int32_t id : vocabulary_.missing_ids) logits[id] = -INFINITY;
  if (request.logprobs > 0) event.top = top_logprobs(logits, vocab, request.logprobs, log_sum);
  // The chosen token's logprob is wanted as the model gave it; penalties change the row in place.
  std::vector<std::pair<int32_t, float>> before;
  if (has_penalties(request.sampling)) {
    if (request.logprobs >= 0) {
      for (const auto& [id, count] : sequence.counts) before.emplace_back(id, logits[id]);
    }
    apply_penalties(logits, request.sampling, sequence.counts);
  }
  const int32_t token = sampler_.choose(logits, request.sampling, sequence.tokens.size());
  if (token < 0) {
    event.finish = FinishReason::kError;
    event.error = "the model gave no finite logit for the next token";
    return;
  }
  if (request.logprobs >= 0) {
    for (const auto& [id, logit] : before) logits[id] = logit;
    event.logprob = static_cast<float>(logits[token] - log_sum);
  }
  event.token = token;
  ++stats_.output_tokens;
  add_token(sequence, event);
}

void Engine::add_token(Sequence& sequence, TokenEvent& event) {
  sequence.tokens.push_back(event.token);
  if (has_penalties(sequence.request.sampling)) ++sequence.counts[event.token];
  const bool end = ends(sequence, event.token);
  if (sequence.text && !end) event.text = sequence.stop.push(sequence.text->push(event.token));
  const bool full = static_cast<int>(sequence.tokens.size()) >= sequence.max_length;
  if (sequence.text && (end || full) && !sequence.stop.stopped()) {
    event.text += sequence.stop.push(sequence.text->finish());
    if (!sequence.stop.stopped()) event.text += sequence.stop.finish();
  }
  if (end || sequence.stop.stopped()) {
    event.finish = FinishReason::kStop;
  } else if (full) {
    event.finish = FinishReason::kLength;
  }
}

bool Engine::ends(const Sequence& sequence, int32_t token) const {
  const auto in = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return in(sequence.request.stop_ids) ||
         (!sequence.request.ignore_eos && in(model_.info().eos_token_ids));
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.running = scheduler_.running();
  stats.waiting = scheduler_.waiting();
  for (int g = 0; g < pools_.groups(); ++g)
    stats.free_blocks.push_back(pools_.pool(g).free_count());
  return stats;
}

}  // namespace lk
