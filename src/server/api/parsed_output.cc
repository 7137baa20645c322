#include "server/api/parsed_output.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace lk {

ApiResult<ParsedOutput> ParsedOutput::make(const ServedModel& served,
                                           std::shared_ptr<const OrderedJson> tools,
                                           const std::string& tail) {
  ParsedOutput out;
  out.tools_ = std::move(tools);
  const bool calls = !out.tools_->is_null();
  OutputParserOptions options{.reasoning = served.parsers.reasoning,
                              .tools = calls ? served.parsers.tools : std::string(),
                              .prompt_tail = tail,
                              .tool_specs = calls ? out.tools_.get() : nullptr};
  if (options.reasoning.empty() && options.tools.empty()) return out;
  auto parser = make_output_parser(options, *served.tokenizer);
  if (!parser) return tl::unexpected<ApiError>(api_error(parser.error()));
  out.parser_ = std::move(*parser);
  return out;
}

OutputDelta ParsedOutput::take(TokenEvent& event, int64_t& reasoning_tokens) {
  OutputDelta delta;
  if (!parser_) {
    delta.content = std::move(event.text);
    return delta;
  }
  if (event.token >= 0 || !event.text.empty()) delta = parser_->push(event.token, event.text);
  if (event.token >= 0) {
    if (!delta.reasoning.empty()) {
      reasoning_tokens += std::exchange(silent_, 0) + 1;
    } else if (!delta.empty()) {
      silent_ = 0;
    } else {
      ++silent_;
    }
  }
  if (event.finish != FinishReason::kNone) {
    OutputDelta rest = parser_->finish();
    delta.reasoning += rest.reasoning;
    delta.content += rest.content;
    for (ToolCallDelta& call : rest.tool_calls) delta.tool_calls.push_back(std::move(call));
  }
  return delta;
}

}  // namespace lk
