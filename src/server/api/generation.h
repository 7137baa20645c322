// What the endpoints that generate have in common: fields, limits, usage, and the frame of an
// answer. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/api/answer.h"
#include "server/api/served_model.h"

namespace lk {

struct GenerationFields {
  int n = 1;
  bool stream = false;
  bool include_usage = false, continuous_usage = false;  // stream_options
};
inline constexpr int kMaxN = 128;

// n, best_of, stream and stream_options. Errors: 400; also for every field that would change the
// answer and cannot be honoured (structured output, suffix, beam search, …), by its name.
ApiResult<GenerationFields> read_generation_fields(const OrderedJson& body);

// "prompt_logprobs": how many of the most likely tokens are told beside each token of the prompt;
// -1: the field is absent. Errors: 400, also where the answer streams.
ApiResult<int> read_prompt_logprobs(const OrderedJson& body, const ServedModel& served);
// Asks the engine for them.
void ask_prompt_logprobs(Request& request, int top);

// The model's defaults with the request's sampling fields, a seed and the adapter; no prompt yet.
ApiResult<Request> read_request(const OrderedJson& body, const ServedModel& served,
                                std::shared_ptr<const EngineAdapter> who);

struct TokenBudget {
  std::optional<int64_t> asked;  // none: the rest of the context
  std::string name = "max_tokens";
  bool clamp = false;          // never refuse what is too long for the context
  bool allow_nothing = false;  // 0 is legal: the prompt is only read
};
// The tokens that may be generated after `prompt` tokens. More than the context leaves is cut to
// what it leaves if the client asked for a whole context or more ("as much as there is"), or if
// `clamp`; otherwise it is an error, like a prompt that fills the context: 400, code
// "context_length_exceeded", with both numbers.
ApiResult<int> resolve_max_tokens(size_t prompt, const TokenBudget& budget,
                                  const ServedModel& served);
// Gives `request` its prompt and max_tokens. Errors: as above, and min_tokens above max_tokens.
ApiStatus set_prompt(Request& request, std::vector<int32_t> prompt, const TokenBudget& budget,
                     const ServedModel& served);

// `n` copies of each prompt's request, seeds counted up from the first. Errors: 400 if that is too
// much for one request.
ApiResult<std::vector<Request>> copy_requests(std::vector<Request> prompts, int n);

struct Usage {
  int64_t prompt = 0, completion = 0;
  int64_t cached = 0;     // of `prompt`
  int64_t reasoning = 0;  // of `completion`
};
// The usage object of completions and chat completions.
void append_usage(std::string& out, const Usage& usage);

// What every body and every chunk of an answer tells.
struct AnswerHead {
  std::string id, model, fingerprint;
  int64_t created = 0;
};
AnswerHead make_head(std::string_view prefix, const ServedModel& served, const std::string& model,
                     const EngineAdapter* who);
// {"id": …, "object": …, "created": …, "model": …, "system_fingerprint": … without the brace.
std::string head_text(const AnswerHead& head, std::string_view object);

inline constexpr std::string_view kStreamEnd = "data: [DONE]\n\n";

// The part of Answer that does not depend on the endpoint.
class GenerationAnswer : public Answer {
 public:
  std::vector<Request> take_requests() override { return std::move(requests_); }
  bool streams() const override { return fields_.stream; }
  bool complete() const override { return finished_ == count_; }
  void fail(const ApiError& error, std::string& out) override;

 protected:
  GenerationAnswer(const GenerationFields& fields, std::vector<Request> requests)
      : fields_(fields), requests_(std::move(requests)), count_(requests_.size()) {}

  // Takes note of the end of a request. False if it failed.
  bool note_finish(const TokenEvent& event);

  GenerationFields fields_;
  std::optional<ApiError> failed_;  // the first request that failed

 private:
  std::vector<Request> requests_;
  size_t count_, finished_ = 0;
};

// ,"finish_reason": …,"stop_reason": … of an event that ends a choice; `reason` replaces the first.
void append_finish(std::string& out, const TokenEvent& event, std::string_view reason);

}  // namespace lk
