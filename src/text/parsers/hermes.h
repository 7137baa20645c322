// Tool calls as JSON between tags: <tool_call>{"name": "f", "arguments": {…}}</tool_call>.
#pragma once

#include <memory>

#include "text/parsers/markup.h"

namespace lk {

// A call exists once its name is known and its arguments begin; from then on the arguments are
// passed on as they are written, JSON or not. What is no call until its closing tag is content as
// it stands, tags included, and so is text behind a call's object. A missing closing tag ends with
// the answer or the next <tool_call>. Tags within JSON strings are text, unless the string was
// never closed: behind a line break (which no JSON string holds), and </tool_call> before a line
// break, another tag or the end.
std::unique_ptr<MarkupStage> make_hermes_stage(OutputDelta& out);

}  // namespace lk
