// Tool calls as tags (Qwen3-Coder, Qwen 3.5 and 3.6, Nemotron 3):
// <tool_call>\n<function=f>\n<parameter=x>\nvalue\n</parameter>\n</function>\n</tool_call>
#pragma once

#include <memory>

#include "text/parsers/markup.h"
#include "text/parsers/tool_types.h"

namespace lk {

// A call begins with <function=NAME>, behind <tool_call>, or without it if NAME is an offered tool.
// Its arguments are written parameter by parameter, in the types that the tools declare. What
// begins no call is content as it stands, tags included, and so is stray text within a call; one
// JSON object in the place of the parameters is taken as the arguments.
// A value ends at </parameter> or </tool_call>, or where <parameter= or </function> begins a line;
// other tags in it are its text. Missing closing tags are made up for, unless the answer ended at a
// limit within a value: that call's arguments then stay open.
std::unique_ptr<MarkupStage> make_qwen_xml_stage(OutputDelta& out, ToolTypes types);

}  // namespace lk
