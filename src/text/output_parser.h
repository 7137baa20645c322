// Takes a model's output apart as it streams: reasoning, content and tool calls. One row for each
// format of the field (output_parser.cc). Not thread-safe; one object for each answer.
//
// However the text is cut into pieces, the deltas joined are the same. Nothing that the model wrote
// is lost but the format's own tags and the white space around them: what is no tool call after all
// is content (parsers/*.h say when). Arguments are passed on as written, JSON or not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace lk {

// A piece of a tool call. The first piece of a call carries `name` (and empty arguments), later
// ones only arguments; the pieces joined are one JSON object, as far as the model wrote one.
struct ToolCallDelta {
  int index = 0;          // of the call in this answer, from 0
  std::string name;       // function name without a namespace ("get_weather", not "functions.…")
  std::string arguments;  // JSON text, a piece of it
};

struct OutputDelta {
  std::string reasoning, content;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // `text` is what became certain with `token` (TokenEvent::text): whole characters, without
  // special tokens. Where `token` is special its text is empty and `text` belongs before it (if
  // special tokens are shown and `text` ends with this one, it is left out again).
  // Every token is told, the one that ends the turn as well; -1 where there is only text.
  virtual OutputDelta push(int32_t token, std::string_view text) = 0;
  // The answer has ended (also at a length limit: an unfinished call is given as it stands).
  virtual OutputDelta finish() = 0;
};

struct OutputParserOptions {
  std::string reasoning{};    // a name of the table; empty: reasoning stays in the content
  std::string tools{};        // a name of the table; empty: calls stay in the content
  std::string prompt_tail{};  // the rendered prompt's end: a template may open <think> itself
  const OrderedJson* tool_specs = nullptr;  // the request's tools: types of arguments; may be null
};

// Names for --reasoning-parser and --tool-call-parser, as vLLM spells them.
std::vector<std::string> reasoning_parser_names();
std::vector<std::string> tool_parser_names();

struct ParserChoice {
  std::string reasoning, tools;  // empty: none
};
// What fits a chat template's source, by the markers that it writes.
ParserChoice detect_output_parsers(std::string_view template_source);

// `tokenizer` must outlive the parser, `tool_specs` need not. Errors: kInvalid naming the unknown
// name and the known ones; kUnsupported if the tokenizer lacks a token that the format needs.
Result<std::unique_ptr<OutputParser>> make_output_parser(const OutputParserOptions& options,
                                                         const Tokenizer& tokenizer);

}  // namespace lk
