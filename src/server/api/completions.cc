// POST /v1/completions.
#include <nlohmann/json.hpp>
#include <span>

#include "server/api/endpoints.h"
#include "server/api/fields.h"
#include "server/api/generation.h"
#include "server/api/json_text.h"
#include "server/api/token_logprobs.h"

namespace lk {
namespace {

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // only for echo
};

struct CompletionFields {
  GenerationFields generation;
  bool echo = false, add_special_tokens = true;
  int logprobs = -1;
  int prompt_logprobs = -1;
  std::optional<int64_t> max_tokens;
};

ApiResult<CompletionFields> read_completion_fields(const OrderedJson& body,
                                                   const ServedModel& served) {
  const Fields fields(body);
  CompletionFields out;
  LK_API_ASSIGN_OR_RETURN(out.generation, read_generation_fields(body));
  LK_API_ASSIGN_OR_RETURN(out.echo, fields.boolean_or("echo", false));
  LK_API_ASSIGN_OR_RETURN(out.add_special_tokens, fields.boolean_or("add_special_tokens", true));
  LK_API_ASSIGN_OR_RETURN(
      const int64_t logprobs,
      fields.integer_or("logprobs", -1, fields.has("logprobs") ? 0 : -1, served.max_logprobs));
  out.logprobs = static_cast<int>(logprobs);
  LK_API_ASSIGN_OR_RETURN(out.prompt_logprobs, read_prompt_logprobs(body, served));
  if (const OrderedJson* value = fields.find("max_tokens")) {
    LK_API_ASSIGN_OR_RETURN(out.max_tokens,
                            read_integer(*value, "max_tokens", out.echo ? 0 : 1, INT64_MAX));
  }
  return out;
}

ApiResult<Prompt> encode_text(const std::string& text, const CompletionFields& fields,
                              const ServedModel& served) {
  auto ids = served.tokenizer->encode(text, {.add_special_tokens = fields.add_special_tokens});
  if (!ids) return bad_field("prompt", "prompt: {}", ids.error().message);
  if (ids->empty()) return bad_field("prompt", "prompt must not be empty");
  return Prompt{std::move(*ids), fields.echo ? text : std::string()};
}

ApiResult<Prompt> read_id_prompt(const OrderedJson& value, const CompletionFields& fields,
                                 const ServedModel& served) {
  LK_API_ASSIGN_OR_RETURN(std::vector<int32_t> ids, read_ids(value, "prompt", served.info.vocab));
  if (ids.empty()) return bad_field("prompt", "prompt must not be empty");
  std::string text = fields.echo ? served.tokenizer->decode(ids, false) : std::string();
  return Prompt{std::move(ids), std::move(text)};
}

// "text", ["text", …], [1, 2, …] or [[1, 2, …], …].
ApiResult<std::vector<Prompt>> read_prompts(const OrderedJson& body, const CompletionFields& fields,
                                            const ServedModel& served) {
  const OrderedJson* value = Fields(body).find("prompt");
  if (value == nullptr) return bad_field("prompt", "prompt is missing");
  std::vector<Prompt> prompts;
  if (value->is_string()) {
    LK_API_ASSIGN_OR_RETURN(prompts.emplace_back(),
                            encode_text(value->get_ref<const std::string&>(), fields, served));
    return prompts;
  }
  if (!value->is_array())
    return bad_field("prompt", "prompt must be a string, a list of strings or token ids, not {}",
                     found_text(*value));
  if (value->empty()) return bad_field("prompt", "prompt must not be an empty list");
  if (!value->front().is_string() && !value->front().is_array()) {
    LK_API_ASSIGN_OR_RETURN(prompts.emplace_back(), read_id_prompt(*value, fields, served));
    return prompts;
  }
  for (const OrderedJson& one : *value) {
    if (one.is_string()) {
      LK_API_ASSIGN_OR_RETURN(prompts.emplace_back(),
                              encode_text(one.get_ref<const std::string&>(), fields, served));
    } else {
      LK_API_ASSIGN_OR_RETURN(prompts.emplace_back(), read_id_prompt(one, fields, served));
    }
  }
  return prompts;
}

class CompletionAnswer final : public GenerationAnswer {
 public:
  CompletionAnswer(const CompletionFields& fields, std::vector<Request> requests,
                   std::vector<Prompt> prompts, const ServedModel& served, const AnswerHead& head)
      : GenerationAnswer(fields.generation, std::move(requests)),
        fields_(fields),
        prompts_(std::move(prompts)),
        head_(head_text(head, "text_completion")) {
    const size_t count = prompts_.size() * static_cast<size_t>(fields.generation.n);
    choices_.assign(count,
                    Choice{.logprobs = CompletionLogprobs(*served.tokenizer),
                           .of_prompt = PromptLogprobs(*served.tokenizer, fields.prompt_logprobs)});
    for (const Prompt& prompt : prompts_) usage_.prompt += static_cast<int64_t>(prompt.ids.size());
    if (streams()) chunk_ = "data: " + head_ + R"(,"choices":[{"index":)";
  }

  void on_event(int index, TokenEvent&& event, std::string& out) override {
    Choice& choice = choices_[static_cast<size_t>(index)];
    take_prompt(index, choice, event);
    if (event.token >= 0) {
      ++usage_.completion;
      ++choice.tokens;
      if (fields_.logprobs >= 0) choice.logprobs.add(event.token, event.logprob, event.top);
    }
    choice.text += event.text;
    const bool good = note_finish(event);
    if (!streams()) {
      if (event.finish != FinishReason::kNone) append_finish(choice.end, event, "");
      return;
    }
    if (!good) {
      out += "data: " + error_body(*failed_) + "\n\n";
      return;
    }
    const bool has_news = !choice.text.empty() || !choice.logprobs.empty();
    const bool prompt_complete = event.token >= 0 || event.finish != FinishReason::kNone;
    if (has_news && prompt_complete) write_chunk(index, choice, nullptr, out);
    if (event.finish != FinishReason::kNone) write_chunk(index, choice, &event, out);
  }

  void end(std::string& out) override {
    if (fields_.generation.include_usage) {
      out += "data: " + head_ + R"(,"choices":[],"usage":)";
      append_usage(out, usage_);
      out += "}\n\n";
    }
    out += kStreamEnd;
  }

  ApiResult<std::string> body() override {
    if (failed_) return tl::unexpected<ApiError>(*failed_);
    std::string out = head_ + R"(,"choices":[)";
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) out += ',';
      out += R"({"index":)";
      append_integer(out, static_cast<int64_t>(i));
      append_text(out, choices_[i]);
      if (fields_.prompt_logprobs >= 0) choices_[i].of_prompt.append(out);
      out += choices_[i].end + "}";
    }
    out += R"(],"usage":)";
    append_usage(out, usage_);
    return out + "}";
  }

 private:
  struct Choice {
    std::string text{};  // not told yet, if it streams
    CompletionLogprobs logprobs;
    PromptLogprobs of_prompt;
    std::string end{};  // finish_reason and stop_reason
    int64_t tokens = 0;
    int scored = 0;  // prompt tokens whose logprobs came
    bool begun = false;
  };

  const Prompt& prompt_of(int index) const {
    return prompts_[static_cast<size_t>(index / fields_.generation.n)];
  }

  // What an event tells of the prompt: echo, its logprobs, and the tokens that came from the cache.
  void take_prompt(int index, Choice& choice, const TokenEvent& event) {
    const Prompt& prompt = prompt_of(index);
    if (index % fields_.generation.n == 0) usage_.cached += event.cached_tokens;
    if (fields_.prompt_logprobs >= 0) choice.of_prompt.take(prompt.ids, event);
    const bool scores = fields_.echo && fields_.logprobs >= 0;
    if (!choice.begun) {
      choice.begun = true;
      if (fields_.echo) choice.text = prompt.text;
      if (scores) choice.logprobs.add_first(prompt.ids[0]);
    }
    if (!scores) return;
    for (size_t i = 0; i < event.prompt_logprobs.size(); ++i) {
      const auto at = static_cast<size_t>(++choice.scored);
      if (at >= prompt.ids.size()) break;
      std::span<const TopLogprob> top;
      if (i < event.prompt_top.size()) top = event.prompt_top[i];
      top = top.first(std::min(top.size(), static_cast<size_t>(fields_.logprobs)));
      choice.logprobs.add(prompt.ids[at], event.prompt_logprobs[i], top);
    }
  }

  void append_text(std::string& out, Choice& choice) const {
    out += R"(,"text":)";
    append_string(out, choice.text);
    choice.text.clear();
    out += R"(,"logprobs":)";
    if (fields_.logprobs >= 0) {
      choice.logprobs.take(out);
    } else {
      out += "null";
    }
  }

  // The reason why a choice ended stands in a chunk of its own (bug case R04).
  void write_chunk(int index, Choice& choice, const TokenEvent* last, std::string& out) const {
    out += chunk_;
    append_integer(out, index);
    if (last == nullptr) {
      append_text(out, choice);
      out += R"(,"finish_reason":null,"stop_reason":null)";
    } else {
      out += R"(,"text":"","logprobs":null)";
      append_finish(out, *last, "");
    }
    out += "}]";
    if (fields_.generation.continuous_usage) {
      out += R"(,"usage":)";
      append_usage(out, {.prompt = static_cast<int64_t>(prompt_of(index).ids.size()),
                         .completion = choice.tokens,
                         .cached = usage_.cached});
    } else if (fields_.generation.include_usage) {
      out += R"(,"usage":null)";
    }
    out += "}\n\n";
  }

  CompletionFields fields_;
  std::vector<Prompt> prompts_;
  std::string head_, chunk_;
  std::vector<Choice> choices_;
  Usage usage_;
};

}  // namespace

ApiResult<std::unique_ptr<Answer>> make_completion_answer(
    const OrderedJson& body, const ServedModel& served, const std::string& model,
    std::shared_ptr<const EngineAdapter> who) {
  LK_API_ASSIGN_OR_RETURN(const CompletionFields fields, read_completion_fields(body, served));
  LK_API_ASSIGN_OR_RETURN(Request shared, read_request(body, served, who));
  shared.logprobs = fields.logprobs;
  shared.prompt_logprobs = fields.echo && fields.logprobs >= 0;
  ask_prompt_logprobs(shared, fields.prompt_logprobs);
  LK_API_ASSIGN_OR_RETURN(std::vector<Prompt> prompts, read_prompts(body, fields, served));
  std::vector<Request> requests;
  for (const Prompt& prompt : prompts) {
    Request request = shared;
    LK_API_RETURN_IF_ERROR(set_prompt(
        request, prompt.ids, {.asked = fields.max_tokens, .allow_nothing = fields.echo}, served));
    requests.push_back(std::move(request));
  }
  LK_API_ASSIGN_OR_RETURN(requests, copy_requests(std::move(requests), fields.generation.n));
  return std::make_unique<CompletionAnswer>(fields, std::move(requests), std::move(prompts), served,
                                            make_head("cmpl-", served, model, who.get()));
}

}  // namespace lk
