// POST /v1/chat/completions.
#include <nlohmann/json.hpp>
#include <optional>

#include "server/api/chat_prompt.h"
#include "server/api/endpoints.h"
#include "server/api/fields.h"
#include "server/api/generation.h"
#include "server/api/json_text.h"
#include "server/api/parsed_output.h"
#include "server/api/token_logprobs.h"

namespace lk {
namespace {

struct ChatFields {
  GenerationFields generation;
  int logprobs = -1;  // as Request::logprobs
  int prompt_logprobs = -1;
  TokenBudget budget;
  bool include_reasoning = true;
  bool skip_special = true;
};

ApiResult<ChatFields> read_chat_fields(const OrderedJson& body, const ServedModel& served) {
  const Fields fields(body);
  ChatFields out;
  LK_API_ASSIGN_OR_RETURN(out.generation, read_generation_fields(body));
  LK_API_ASSIGN_OR_RETURN(const bool logprobs, fields.boolean_or("logprobs", false));
  LK_API_ASSIGN_OR_RETURN(const int64_t top,
                          fields.integer_or("top_logprobs", 0, 0, served.max_logprobs));
  if (top > 0 && !logprobs)
    return bad_field("top_logprobs", "top_logprobs goes with \"logprobs\": true only");
  if (logprobs) out.logprobs = static_cast<int>(top);
  LK_API_ASSIGN_OR_RETURN(out.prompt_logprobs, read_prompt_logprobs(body, served));
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const OrderedJson* value = fields.find(name);
    if (value == nullptr) continue;
    LK_API_ASSIGN_OR_RETURN(out.budget.asked, read_integer(*value, name, 1, INT64_MAX));
    out.budget.name = name;
  }
  LK_API_ASSIGN_OR_RETURN(out.include_reasoning, fields.boolean_or("include_reasoning", true));
  LK_API_RETURN_IF_ERROR(fields.boolean_or("parallel_tool_calls", true));
  return out;
}

class ChatAnswer final : public GenerationAnswer {
 public:
  ChatAnswer(const ChatFields& fields, std::vector<Request> requests, const ServedModel& served,
             std::vector<ParsedOutput> outputs, const AnswerHead& head)
      : GenerationAnswer(fields.generation, std::move(requests)),
        fields_(fields),
        tokenizer_(served.tokenizer),
        head_(head_text(head,
                        fields.generation.stream ? "chat.completion.chunk" : "chat.completion")) {
    for (ParsedOutput& output : outputs) choices_.push_back({.output = std::move(output)});
    if (streams()) chunk_ = "data: " + head_ + R"(,"choices":[{"index":)";
  }

  void set_prompt(const std::vector<int32_t>& ids) {
    usage_.prompt = static_cast<int64_t>(ids.size());
    if (fields_.prompt_logprobs < 0) return;
    prompt_ = ids;
    prompt_logprobs_.emplace(*tokenizer_, fields_.prompt_logprobs);
  }

  void on_event(int index, TokenEvent&& event, std::string& out) override {
    Choice& choice = choices_[static_cast<size_t>(index)];
    if (index == 0) take_prompt(event);
    if (event.token >= 0) add_token(choice, event);
    if (streams() && !choice.begun) write_role(index, choice, out);
    const OutputDelta delta = choice.output.take(event, usage_.reasoning);
    const bool good = note_finish(event);
    if (!streams()) {
      keep(choice, delta);
      if (event.finish != FinishReason::kNone)
        append_finish(choice.end, event, reason(choice, event));
      return;
    }
    if (!good) {
      out += "data: " + error_body(*failed_) + "\n\n";
      return;
    }
    write_delta(index, choice, delta, out);
    if (event.finish != FinishReason::kNone) write_finish(index, choice, event, out);
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
      const Choice& choice = choices_[i];
      if (i > 0) out += ',';
      out += R"({"index":)";
      append_integer(out, static_cast<int64_t>(i));
      append_message(out, choice);
      out += R"(,"logprobs":)";
      out += fields_.logprobs >= 0 ? R"({"content":[)" + choice.logprobs + R"(],"refusal":null})"
                                   : std::string("null");
      out += choice.end + "}";
    }
    out += ']';
    if (prompt_logprobs_) prompt_logprobs_->append(out);
    out += R"(,"usage":)";
    append_usage(out, usage_);
    return out + "}";
  }

 private:
  struct Choice {
    ParsedOutput output;
    OutputDelta whole{};                 // if it does not stream; without tool calls
    std::vector<ToolCallDelta> calls{};  // names and whole arguments
    std::string logprobs{};              // entries that were not told yet
    std::string end{};                   // finish_reason and stop_reason
    int64_t tokens = 0;
    int calls_begun = 0;
    bool begun = false;
  };

  void add_token(Choice& choice, const TokenEvent& event) {
    ++choice.tokens;
    ++usage_.completion;
    if (fields_.logprobs < 0) return;
    if (!choice.logprobs.empty()) choice.logprobs += ',';
    append_chat_logprob(choice.logprobs, *tokenizer_, fields_.skip_special, event.token,
                        event.logprob, event.top);
  }

  // The choices have one prompt: what the first is told of it counts.
  void take_prompt(const TokenEvent& event) {
    usage_.cached += event.cached_tokens;
    if (prompt_logprobs_) prompt_logprobs_->take(prompt_, event);
  }

  static std::string_view reason(const Choice& choice, const TokenEvent& event) {
    const bool called = choice.calls_begun > 0 && event.finish == FinishReason::kStop;
    return called ? "tool_calls" : std::string_view();
  }

  void keep(Choice& choice, const OutputDelta& delta) const {
    choice.whole.reasoning += delta.reasoning;
    choice.whole.content += delta.content;
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (call.index >= choice.calls_begun) {
        choice.calls_begun = call.index + 1;
        choice.calls.resize(static_cast<size_t>(choice.calls_begun));
      }
      ToolCallDelta& whole = choice.calls[static_cast<size_t>(call.index)];
      whole.name += call.name;
      whole.arguments += call.arguments;
    }
  }

  void append_message(std::string& out, const Choice& choice) const {
    const OutputDelta& whole = choice.whole;
    const bool reasons = fields_.include_reasoning && !whole.reasoning.empty();
    out += R"(,"message":{"role":"assistant","content":)";
    if (whole.content.empty() && (reasons || !choice.calls.empty())) {
      out += "null";
    } else {
      append_string(out, whole.content);
    }
    out += R"(,"refusal":null)";
    if (reasons) append_reasoning(out, whole.reasoning);
    if (!choice.calls.empty()) {
      out += R"(,"tool_calls":[)";
      for (const ToolCallDelta& call : choice.calls) {
        if (out.back() != '[') out += ',';
        out += R"({"id":")" + random_id("call_") + R"(","type":"function","function":{"name":)";
        append_string(out, call.name);
        out += R"(,"arguments":)";
        append_string(out, call.arguments);
        out += "}}";
      }
      out += ']';
    }
    out += '}';
  }

  // Under both names that clients read.
  static void append_reasoning(std::string& out, std::string_view text) {
    out += R"(,"reasoning_content":)";
    append_string(out, text);
    out += R"(,"reasoning":)";
    append_string(out, text);
  }

  void write_role(int index, Choice& choice, std::string& out) const {
    choice.begun = true;
    out += chunk_;
    append_integer(out, index);
    out += R"(,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null)";
    close_chunk(choice, out);
  }

  void write_delta(int index, Choice& choice, const OutputDelta& delta, std::string& out) const {
    if (fields_.include_reasoning && !delta.reasoning.empty()) {
      open_delta(index, out);
      out += R"("reasoning_content":)";
      append_string(out, delta.reasoning);
      out += R"(,"reasoning":)";
      append_string(out, delta.reasoning);
      close_delta(choice, out);
    }
    if (!delta.content.empty()) {
      open_delta(index, out);
      out += R"("content":)";
      append_string(out, delta.content);
      close_delta(choice, out);
    }
    for (const ToolCallDelta& call : delta.tool_calls) write_call(index, choice, call, out);
    if (!choice.logprobs.empty()) {  // of a token that told nothing
      open_delta(index, out);
      close_delta(choice, out);
    }
  }

  void write_call(int index, Choice& choice, const ToolCallDelta& call, std::string& out) const {
    open_delta(index, out);
    out += R"("tool_calls":[{"index":)";
    append_integer(out, call.index);
    if (call.index >= choice.calls_begun) {
      choice.calls_begun = call.index + 1;
      out += R"(,"id":")" + random_id("call_") + R"(","type":"function","function":{"name":)";
      append_string(out, call.name);
      out += ',';
    } else {
      out += R"(,"function":{)";
    }
    out += R"("arguments":)";
    append_string(out, call.arguments);
    out += "}}]";
    close_delta(choice, out);
  }

  void open_delta(int index, std::string& out) const {
    out += chunk_;
    append_integer(out, index);
    out += R"(,"delta":{)";
  }

  void close_delta(Choice& choice, std::string& out) const {
    if (choice.logprobs.empty()) {
      out += R"(},"logprobs":null,"finish_reason":null)";
    } else {
      out += R"(},"logprobs":{"content":[)";
      out += choice.logprobs;
      out += R"(],"refusal":null},"finish_reason":null)";
      choice.logprobs.clear();
    }
    close_chunk(choice, out);
  }

  // The reason stands in a chunk of its own (bug case R04).
  void write_finish(int index, Choice& choice, const TokenEvent& event, std::string& out) const {
    open_delta(index, out);
    out += R"(},"logprobs":null)";
    append_finish(out, event, reason(choice, event));
    close_chunk(choice, out);
  }

  void close_chunk(const Choice& choice, std::string& out) const {
    out += "}]";
    if (fields_.generation.continuous_usage) {
      out += R"(,"usage":)";
      append_usage(out,
                   {.prompt = usage_.prompt, .completion = choice.tokens, .cached = usage_.cached});
    } else if (fields_.generation.include_usage) {
      out += R"(,"usage":null)";
    }
    out += "}\n\n";
  }

  ChatFields fields_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string head_, chunk_;
  std::vector<Choice> choices_;
  std::vector<int32_t> prompt_;                    // if its logprobs are told
  std::optional<PromptLogprobs> prompt_logprobs_;  // likewise
  Usage usage_;
};

}  // namespace

ApiResult<std::unique_ptr<Answer>> make_chat_answer(const OrderedJson& body,
                                                    const ServedModel& served,
                                                    const std::string& model,
                                                    std::shared_ptr<const EngineAdapter> who) {
  LK_API_ASSIGN_OR_RETURN(ChatFields fields, read_chat_fields(body, served));
  LK_API_ASSIGN_OR_RETURN(Request request, read_request(body, served, who));
  LK_API_ASSIGN_OR_RETURN(Conversation conversation, read_conversation(body, served));
  const auto tools = std::make_shared<const OrderedJson>(conversation.tools);
  LK_API_ASSIGN_OR_RETURN(ChatPrompt prompt, encode_conversation(std::move(conversation), served));
  request.logprobs = fields.logprobs;
  ask_prompt_logprobs(request, fields.prompt_logprobs);
  LK_API_RETURN_IF_ERROR(set_prompt(request, std::move(prompt.ids), fields.budget, served));
  std::vector<ParsedOutput> outputs;
  for (int i = 0; i < fields.generation.n; ++i) {
    LK_API_ASSIGN_OR_RETURN(ParsedOutput output, ParsedOutput::make(served, tools, prompt.tail));
    if (output.parses()) request.skip_special = true;
    outputs.push_back(std::move(output));
  }
  fields.skip_special = request.skip_special;
  std::vector<Request> prompts;
  prompts.push_back(std::move(request));
  LK_API_ASSIGN_OR_RETURN(std::vector<Request> requests,
                          copy_requests(std::move(prompts), fields.generation.n));
  for (size_t i = 1; i < requests.size(); ++i) requests[i].prompt_logprobs = false;
  const std::vector<int32_t> prompt_ids = requests[0].prompt;
  auto answer =
      std::make_unique<ChatAnswer>(fields, std::move(requests), served, std::move(outputs),
                                   make_head("chatcmpl-", served, model, who.get()));
  answer->set_prompt(prompt_ids);
  return answer;
}

}  // namespace lk
