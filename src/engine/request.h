// What the engine is asked and what it answers: requests in, token events out. Plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace lk {

class PreparedAdapter;

// An adapter as requests refer to it. Shared by pointer, immutable: requests keep the one that they
// were submitted with, whatever happens to its name afterwards.
struct EngineAdapter {
  std::string name{};
  uint64_t identity = 0;  // content hash (Adapter::identity)
  std::shared_ptr<const PreparedAdapter> prepared{};
};

// How the next token is chosen from a row of logits. Steps, in this order: ids without a token are
// excluded; logit_bias; ids that min_tokens forbids; the mask; penalties; temperature; top_k;
// top_p; min_p; one draw. See sampler.h for the formulas.
struct SamplingParams {
  float temperature = 0;         // [0, 100]; 0: the largest logit, the lowest id among equals
  int top_k = 0;                 // 0: all
  float top_p = 1;               // (0, 1]
  float min_p = 0;               // [0, 1]
  float repetition_penalty = 1;  // (0, 100]; on tokens of prompt and output
  float presence_penalty = 0;    // [-100, 100]; on tokens of the output
  float frequency_penalty = 0;   // [-100, 100]; times their count
  uint64_t seed = 0;
};
inline constexpr int kMaxTopLogprobs = 100;

// Errors: kInvalid naming the field and its range.
Status check_sampling(const SamplingParams& params);

// Which tokens may come next, for structured output: one object for each request, asked on the
// engine's thread only.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Sets logits [vocab] of tokens that must not follow to -infinity. At least one stays finite.
  virtual void apply(std::span<float> logits) = 0;
  // `token` was chosen.
  virtual void accept(int32_t token) = 0;
};

struct Request {
  std::vector<int32_t> prompt{};                   // not empty
  std::shared_ptr<const EngineAdapter> adapter{};  // null: the base
  SamplingParams sampling{};
  std::vector<std::string> stop{};  // the text ends before the first of these
  std::vector<int32_t> stop_ids{};  // end the request like the model's own end-of-turn ids
  bool ignore_eos = false;
  bool include_stop = false;  // a stop string, or the text of a token, that ended it stays in it
  bool skip_special = true;   // special tokens add nothing to the text
  int min_tokens = 0;  // no end-of-turn id, no id of stop_ids and no stop before as many tokens
  std::vector<std::pair<int32_t, float>> logit_bias{};  // added to logits, before penalties
  std::shared_ptr<TokenMask> mask{};                    // may be null
  int max_tokens = -1;  // -1: as many as the context holds; 0: the prompt is only read
  int logprobs =
      -1;  // -1: none; 0: of the chosen token; K: also of the K most likely, [0, kMaxTopLogprobs]
  bool prompt_logprobs = false;  // of prompt tokens, with as many of the most likely as `logprobs`
  int prompt_top = 0;            // or with as many as this, if that is more
  bool prompt_ranks = false;     // of prompt tokens too; with prompt_logprobs
};

// Bounds of a request's lists: each stop string costs a few steps for every byte of the text.
inline constexpr int kMaxStops = 128;
inline constexpr int kMaxStopBytes = 4096;  // of one stop string
inline constexpr float kMaxLogitBias = 100;

// What a request is checked against.
struct RequestLimits {
  int vocab = 0;
  int max_model_len = 0;  // tokens of prompt and output
  int adapter_slots = 0;
};

// The tokens that `request` may generate: max_tokens, or what it stands for if it is -1.
int resolved_max_tokens(const Request& request, int max_model_len);

// Errors: kInvalid, one sentence naming the field: an empty prompt, an id outside the vocabulary, a
// parameter out of range, more tokens than max_model_len.
Status check_request(const Request& request, const RequestLimits& limits);

using RequestId = uint64_t;

enum class FinishReason : uint8_t { kNone, kStop, kLength, kError };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "error"

// Natural logarithms of the model's probabilities (softmax over the whole vocabulary at temperature
// 1, before penalties and filters).
struct TopLogprob {
  int32_t id = 0;
  float logprob = 0;
};

using Clock = std::chrono::steady_clock;

// When a request came to the engine, was first part of a step, and got its first token; the epoch
// where that did not happen.
struct RequestTimes {
  Clock::time_point arrival{}, scheduled{}, first_token{};
};

// One step's news of one request. A request gets exactly one event with a finish reason, its last,
// unless it is cancelled.
struct TokenEvent {
  RequestId request = 0;
  int32_t token = -1;  // the chosen token; -1 if this event brings none
  std::string text{};  // decoded and safe to show: whole characters, no beginning of a stop string
  float logprob = 0;   // of `token`, if asked for
  std::vector<TopLogprob> top{};         // best first
  std::vector<float> prompt_logprobs{};  // of the prompt tokens read in this step; all events
                                         // together: prompt tokens 1, 2, ...
  std::vector<std::vector<TopLogprob>> prompt_top{};  // beside them, if any were asked for
  std::vector<int32_t> prompt_ranks{};  // beside them, if asked for: 1 is the most likely token
  int cached_tokens = 0;  // prompt tokens taken from the prefix cache; in the request's first event
  FinishReason finish = FinishReason::kNone;
  // With kStop: the stop string that ended it, or empty; `stop_id`: the token of stop_ids, or -1.
  std::string stop{};
  int32_t stop_id = -1;
  std::string error{};   // with kError: one sentence
  RequestTimes times{};  // in the last event
};

}  // namespace lk
