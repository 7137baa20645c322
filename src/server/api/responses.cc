// POST /v1/responses. Nothing is stored: each request brings its whole conversation.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "server/api/endpoints.h"
#include "server/api/fields.h"
#include "server/api/generation.h"
#include "server/api/json_text.h"
#include "server/api/parsed_output.h"
#include "server/api/response_input.h"
#include "server/api/response_items.h"
#include "server/api/token_logprobs.h"

namespace lk {
namespace {

// Fields that need what this server does not keep or run.
constexpr std::string_view kUnavailable[] = {"previous_response_id", "conversation", "prompt",
                                             "background"};

ApiStatus check_text_format(const Fields& fields) {
  const OrderedJson* text = fields.find("text");
  if (text == nullptr) return {};
  if (!text->is_object())
    return bad_field("text", "text must be an object, not {}", found_text(*text));
  const OrderedJson* format = Fields(*text).find("format");
  if (format == nullptr) return {};
  if (!format->is_object())
    return bad_field("text.format", "text.format must be an object, not {}", found_text(*format));
  LK_API_ASSIGN_OR_RETURN(const std::string type,
                          Fields(*format, "text.format.").string_or("type", "text"));
  if (type == "text") return {};
  return bad_field("text.format", "text.format of type {} is not supported, only \"text\" is",
                   found_text(OrderedJson(type)));
}

// As Request::logprobs: "top_logprobs" counts if "include" asks for logprobs.
ApiResult<int> read_logprobs(const OrderedJson& body, const ServedModel& served) {
  const Fields fields(body);
  LK_API_ASSIGN_OR_RETURN(const int64_t top,
                          fields.integer_or("top_logprobs", 0, 0, served.max_logprobs));
  const OrderedJson* include = fields.find("include");
  if (include == nullptr) return -1;
  if (!include->is_array())
    return bad_field("include", "include must be a list of strings, not {}", found_text(*include));
  bool asked = false;
  for (size_t i = 0; i < include->size(); ++i) {
    const OrderedJson& what = (*include)[i];
    const std::string name = fmt::format("include[{}]", i);
    if (!what.is_string())
      return bad_field(name, "{} must be a string, not {}", name, found_text(what));
    asked |= what == "message.output_text.logprobs";
  }
  return asked ? static_cast<int>(top) : -1;
}

ApiResult<GenerationFields> read_response_fields(const OrderedJson& body) {
  const Fields fields(body);
  for (std::string_view name : kUnavailable) {
    const OrderedJson* value = fields.find(name);
    if (value != nullptr && *value != false)
      return bad_field(std::string(name), "{} is not supported: no response is stored", name);
  }
  LK_API_RETURN_IF_ERROR(check_text_format(fields));
  LK_API_RETURN_IF_ERROR(fields.boolean_or("store", true));
  LK_API_RETURN_IF_ERROR(fields.boolean_or("parallel_tool_calls", true));
  LK_API_ASSIGN_OR_RETURN(const GenerationFields generation, read_generation_fields(body));
  if (generation.n != 1) return bad_field("n", "n must be 1, not {}", generation.n);
  return generation;
}

// The fields of a response that tell the request again, as ,"name": value….
std::string echo_text(const OrderedJson& body, const Request& request) {
  const Fields fields(body);
  const auto given = [&fields](std::string_view key, OrderedJson fallback) {
    const OrderedJson* value = fields.find(key);
    return value == nullptr ? fallback : *value;
  };
  const OrderedJson none;
  const OrderedJson reasoning = given("reasoning", OrderedJson::object());
  const OrderedJson echo = {{"background", false},
                            {"instructions", given("instructions", none)},
                            {"max_output_tokens", given("max_output_tokens", none)},
                            {"max_tool_calls", none},
                            {"metadata", given("metadata", OrderedJson::object())},
                            {"parallel_tool_calls", given("parallel_tool_calls", true)},
                            {"previous_response_id", none},
                            {"reasoning",
                             {{"effort", reasoning.value("effort", none)},
                              {"summary", reasoning.value("summary", none)}}},
                            {"service_tier", "default"},
                            {"store", false},
                            {"text", {{"format", {{"type", "text"}}}}},
                            {"tool_choice", given("tool_choice", "auto")},
                            {"tools", given("tools", OrderedJson::array())},
                            {"top_logprobs", given("top_logprobs", 0)},
                            {"truncation", "disabled"},
                            {"user", given("user", none)}};
  std::string out = echo.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  out.front() = ',';
  out.back() = ',';
  out += R"("temperature":)";
  append_logprob(out, request.sampling.temperature);
  out += R"(,"top_p":)";
  append_logprob(out, request.sampling.top_p);
  return out;
}

class ResponseAnswer final : public GenerationAnswer {
 public:
  // `tokenizer`: of the tokens whose logprobs are told; null for none.
  ResponseAnswer(const GenerationFields& fields, std::vector<Request> requests, ParsedOutput output,
                 const AnswerHead& head, std::string echo, const Tokenizer* tokenizer)
      : GenerationAnswer(fields, std::move(requests)),
        tokenizer_(tokenizer),
        output_(std::move(output)),
        items_(fields.stream),
        echo_(std::move(echo)) {
    head_ = R"({"id":")" + head.id + R"(","object":"response","created_at":)";
    append_integer(head_, head.created);
    head_ += R"(,"model":)";
    append_string(head_, head.model);
    head_ += R"(,"system_fingerprint":)";
    append_string(head_, head.fingerprint);
  }

  void set_prompt_tokens(size_t count) { usage_.prompt = static_cast<int64_t>(count); }

  void on_event(int, TokenEvent&& event, std::string& out) override {
    begin(out);
    usage_.cached += event.cached_tokens;
    if (event.token >= 0) ++usage_.completion;
    note_logprob(event);
    const OutputDelta delta = output_.take(event, usage_.reasoning);
    items_.take(delta, logprobs_, out);
    if (!delta.empty()) logprobs_.clear();
    const FinishReason finish = event.finish;
    if (!note_finish(event) || finish == FinishReason::kNone) return;
    complete_ = finish == FinishReason::kStop;
    items_.finish(complete_, out);
  }

  void end(std::string& out) override {
    if (failed_) return fail(*failed_, out);
    begin(out);
    const std::string_view status = complete_ ? "completed" : "incomplete";
    response_event(fmt::format("response.{}", status), status, out);
  }

  ApiResult<std::string> body() override {
    if (failed_) return tl::unexpected<ApiError>(*failed_);
    std::string out;
    append_response(out, complete_ ? "completed" : "incomplete");
    return out;
  }

  void fail(const ApiError& error, std::string& out) override {
    begin(out);
    failed_ = error;
    response_event("response.failed", "failed", out);
  }

 private:
  // Of the tokens since the last that told something: with the next they may make a character. A
  // marker's end what came before it.
  void note_logprob(const TokenEvent& event) {
    if (tokenizer_ == nullptr || event.token < 0) return;
    if (tokenizer_->is_special(event.token)) return logprobs_.clear();
    if (!logprobs_.empty()) logprobs_ += ',';
    append_chat_logprob(logprobs_, *tokenizer_, /*skip_special=*/false, event.token, event.logprob,
                        event.top);
  }

  void begin(std::string& out) {
    if (begun_ || !streams()) return;
    begun_ = true;
    response_event("response.created", "in_progress", out);
    response_event("response.in_progress", "in_progress", out);
  }

  void response_event(std::string_view type, std::string_view status, std::string& out) {
    items_.begin_event(type, out);
    out += R"(,"response":)";
    append_response(out, status);
    out += "}\n\n";
  }

  void append_response(std::string& out, std::string_view status) const {
    out += head_ + R"(,"status":")";
    out += status;
    out += R"(","error":)";
    if (status == "failed") {
      out += R"({"code":"server_error","message":)";
      append_string(out, failed_->message);
      out += '}';
    } else {
      out += "null";
    }
    out += R"(,"incomplete_details":)";
    out += status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null";
    out += echo_ + R"(,"output":)";
    if (status == "in_progress") {
      out += R"([],"usage":null})";
      return;
    }
    items_.append_list(out);
    out += R"(,"usage":{"input_tokens":)";
    append_integer(out, usage_.prompt);
    out += R"(,"input_tokens_details":{"cached_tokens":)";
    append_integer(out, usage_.cached);
    out += R"(,"cache_write_tokens":0},"output_tokens":)";
    append_integer(out, usage_.completion);
    out += R"(,"output_tokens_details":{"reasoning_tokens":)";
    append_integer(out, usage_.reasoning);
    out += R"(},"total_tokens":)";
    append_integer(out, usage_.prompt + usage_.completion);
    out += "}}";
  }

  const Tokenizer* tokenizer_;
  ParsedOutput output_;
  ResponseItems items_;
  std::string logprobs_;  // entries
  std::string head_, echo_;
  Usage usage_;
  bool begun_ = false;
  bool complete_ = false;  // not cut
};

}  // namespace

ApiResult<std::unique_ptr<Answer>> make_response_answer(const OrderedJson& body,
                                                        const ServedModel& served,
                                                        const std::string& model,
                                                        std::shared_ptr<const EngineAdapter> who) {
  LK_API_ASSIGN_OR_RETURN(const GenerationFields fields, read_response_fields(body));
  LK_API_ASSIGN_OR_RETURN(Request request, read_request(body, served, who));
  LK_API_ASSIGN_OR_RETURN(request.logprobs, read_logprobs(body, served));
  const Tokenizer* scored = request.logprobs >= 0 ? served.tokenizer.get() : nullptr;
  // The client that asks for 131,072 tokens wants an answer, not an error.
  TokenBudget budget;
  budget.name = "max_output_tokens";
  budget.clamp = true;
  if (const OrderedJson* value = Fields(body).find("max_output_tokens")) {
    LK_API_ASSIGN_OR_RETURN(budget.asked, read_integer(*value, "max_output_tokens", 1, INT64_MAX));
  }
  LK_API_ASSIGN_OR_RETURN(Conversation conversation, read_response_input(body, served));
  const auto tools = std::make_shared<const OrderedJson>(conversation.tools);
  LK_API_ASSIGN_OR_RETURN(ChatPrompt prompt, encode_conversation(std::move(conversation), served));
  LK_API_ASSIGN_OR_RETURN(ParsedOutput output, ParsedOutput::make(served, tools, prompt.tail));
  if (output.parses()) request.skip_special = true;
  const size_t prompt_tokens = prompt.ids.size();
  LK_API_RETURN_IF_ERROR(set_prompt(request, std::move(prompt.ids), budget, served));
  std::string echo = echo_text(body, request);
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  auto answer = std::make_unique<ResponseAnswer>(fields, std::move(requests), std::move(output),
                                                 make_head("resp_", served, model, who.get()),
                                                 std::move(echo), scored);
  answer->set_prompt_tokens(prompt_tokens);
  return answer;
}

}  // namespace lk
