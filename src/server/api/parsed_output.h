// A request's text taken apart into reasoning, content and tool calls, for the endpoints that do.
// Used by one thread; one object for each choice.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "engine/request.h"
#include "server/api/api_error.h"
#include "server/api/served_model.h"

namespace lk {

class ParsedOutput {
 public:
  // `tools` (never null; may hold null) decides whether calls are looked for. `tail` is the end of
  // the rendered prompt. Errors: as make_output_parser.
  static ApiResult<ParsedOutput> make(const ServedModel& served,
                                      std::shared_ptr<const OrderedJson> tools,
                                      const std::string& tail);

  // Something looks for markers, so the request must leave special tokens out of the text.
  bool parses() const { return parser_ != nullptr; }
  // What an event brings. Adds to `reasoning_tokens` the tokens that went into reasoning; a token
  // that tells nothing counts with the next that does.
  OutputDelta take(TokenEvent& event, int64_t& reasoning_tokens);

 private:
  std::shared_ptr<const OrderedJson> tools_;
  std::unique_ptr<OutputParser> parser_;  // null: all is content
  int silent_ = 0;                        // tokens that told nothing so far
};

}  // namespace lk
