#include "engine/token_output.h"

#include <algorithm>
#include <cmath>

#include "engine/logprobs.h"

namespace lk {
namespace {

std::vector<std::pair<int32_t, int32_t>> ranges_of(std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  std::vector<std::pair<int32_t, int32_t>> ranges;
  for (int32_t id : ids) {
    if (ranges.empty() || ranges.back().second < id) ranges.emplace_back(id, id);
    ranges.back().second = id + 1;
  }
  return ranges;
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool below_min_tokens(const Sequence& sequence) {
  return sequence.output_size() < sequence.request.min_tokens;
}

}  // namespace

TokenOutput::TokenOutput(const Vocabulary& vocabulary, std::vector<int32_t> eos_ids, int vocab)
    : missing_(ranges_of(vocabulary.missing_ids)),
      eos_ids_(std::move(eos_ids)),
      vocab_(vocab),
      sampler_(vocab) {}

bool TokenOutput::is_eos(int32_t token) const { return contains(eos_ids_, token); }

bool TokenOutput::changes_row(const Sequence& sequence) {
  const Request& request = sequence.request;
  return has_penalties(request.sampling) || !request.logit_bias.empty() || request.mask ||
         below_min_tokens(sequence);
}

std::optional<RowChoice> TokenOutput::row_choice(const Sequence& sequence, int most_top) const {
  const Request& request = sequence.request;
  const SamplingParams& sampling = request.sampling;
  // Ids without a token stand behind all others, if anywhere.
  const int32_t limit = missing_.empty() ? vocab_ : missing_.front().first;
  const bool tail = missing_.empty() || (missing_.size() == 1 && missing_[0].second == vocab_);
  if (changes_row(sequence) || !tail) return std::nullopt;
  // A nucleus may hold any number of tokens: most have few.
  const Draw draw = draw_of(sampling, vocab_);
  int top = draw == Draw::kTopK ? sampling.top_k : draw == Draw::kNucleus ? most_top : 0;
  top = std::max(top, request.logprobs);
  if (top > most_top || (draw == Draw::kNucleus && most_top == 0)) return std::nullopt;
  return RowChoice{
      .uniform = draw == Draw::kLargest ? 0 : uniform_at(sampling.seed, sequence.tokens.size()),
      .scale = draw == Draw::kLargest ? 0 : inverse_temperature(sampling),
      .limit = limit,
      .top = top,
      .model_sum = request.logprobs >= 0};
}

bool TokenOutput::take_choice(Sequence& sequence, const RowChoice& choice, const RowResult& result,
                              std::span<const TopLogit> best, TokenEvent& event) {
  const Request& request = sequence.request;
  TopLogit token{result.token, result.logit};
  best = best.first(choice.top);
  const Draw draw = draw_of(request.sampling, vocab_);
  if (token.id >= 0 && (draw == Draw::kTopK || draw == Draw::kNucleus)) {
    const auto drawn =
        sampler_.choose_from(best, result.sum, request.sampling, sequence.tokens.size());
    if (!drawn) return false;
    token = *drawn;
  }
  if (request.logprobs >= 0 && token.id >= 0) {
    const double log_sum = result.largest + std::log(result.model_sum);
    if (!std::isfinite(log_sum)) return false;  // ids without a token have logits far above
    event.logprob = static_cast<float>(token.logit - log_sum);
    for (const TopLogit& entry : best.first(request.logprobs)) {
      if (entry.id < 0) break;
      event.top.push_back({entry.id, static_cast<float>(entry.logit - log_sum)});
    }
  }
  take_token(sequence, token.id, event);
  return true;
}

void TokenOutput::take_token(Sequence& sequence, int32_t token, TokenEvent& event) {
  if (token < 0) {
    event.finish = FinishReason::kError;
    event.error = "no token can follow: the model gave no finite logit, or none is allowed";
    return;
  }
  event.token = token;
  if (sequence.request.mask) sequence.request.mask->accept(token);
  sequence.tokens.push_back(token);
  if (has_penalties(sequence.request.sampling)) ++sequence.counts[token];
  end_or_go_on(sequence, event);
}

void TokenOutput::next_token(Sequence& sequence, float* logits, TokenEvent& event) {
  const Request& request = sequence.request;
  const bool scored = request.logprobs >= 0;
  const double log_sum = scored ? log_sum_exp(logits, vocab_) : 0;
  for (const auto& [first, last] : missing_) std::fill(logits + first, logits + last, -INFINITY);
  if (request.logprobs > 0) event.top = top_logprobs(logits, vocab_, request.logprobs, log_sum);
  // Logprobs are those of the model, whatever the request does to the row.
  const float* model_row = logits;
  if (scored && changes_row(sequence)) {
    model_row_.assign(logits, logits + vocab_);
    model_row = model_row_.data();
  }
  const int32_t token = choose(sequence, logits);
  if (scored && token >= 0) event.logprob = static_cast<float>(model_row[token] - log_sum);
  take_token(sequence, token, event);
}

int32_t TokenOutput::choose(const Sequence& sequence, float* logits) {
  const Request& request = sequence.request;
  for (const auto& [id, bias] : request.logit_bias) logits[id] += bias;
  excluded_.clear();
  if (below_min_tokens(sequence)) {
    const auto exclude = [&](int32_t id) {
      excluded_.emplace_back(id, logits[id]);
      logits[id] = -INFINITY;
    };
    for (int32_t id : request.stop_ids) exclude(id);
    if (!request.ignore_eos) std::for_each(eos_ids_.begin(), eos_ids_.end(), exclude);
  }
  if (request.mask) request.mask->apply({logits, static_cast<size_t>(vocab_)});
  if (has_penalties(request.sampling)) apply_penalties(logits, request.sampling, sequence.counts);
  const uint64_t position = sequence.tokens.size();
  const int32_t token = sampler_.choose(logits, request.sampling, position);
  if (token >= 0 || excluded_.empty() || !request.mask) return token;
  // The mask wants the end before min_tokens: it knows better. Backwards, as an id may be there
  // twice.
  for (auto at = excluded_.rbegin(); at != excluded_.rend(); ++at) logits[at->first] = at->second;
  request.mask->apply({logits, static_cast<size_t>(vocab_)});
  return sampler_.choose(logits, request.sampling, position);
}

void TokenOutput::end_or_go_on(Sequence& sequence, TokenEvent& event) {
  const Request& request = sequence.request;
  const bool eos = !request.ignore_eos && is_eos(event.token);
  const bool stop_id = !eos && contains(request.stop_ids, event.token);
  const bool full = static_cast<int>(sequence.tokens.size()) >= sequence.max_length;
  add_text(sequence, event, eos || stop_id, full);
  if (eos || stop_id || sequence.stop.stopped()) {
    event.finish = FinishReason::kStop;
    event.stop = sequence.stop.stop();
    if (stop_id) event.stop_id = event.token;
  } else if (full) {
    event.finish = FinishReason::kLength;
  }
}

void TokenOutput::add_text(Sequence& sequence, TokenEvent& event, bool ended, bool last) {
  if (!sequence.text) return;
  TextStream& stream = *sequence.text;
  StopMatcher& stop = sequence.stop;
  const auto add = [&](std::string piece) {
    event.text += below_min_tokens(sequence) ? std::move(piece) : stop.push(piece);
  };
  const bool boundary = stream.boundary(event.token);
  if (!boundary && (!ended || sequence.request.include_stop)) add(stream.push(event.token));
  if (!boundary && !ended && !last) return;
  add(stream.finish());
  if (!stop.stopped()) event.text += stop.finish();
}

}  // namespace lk
