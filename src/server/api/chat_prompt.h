// From a conversation in a request to the prompt's tokens. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/api/api_error.h"
#include "server/api/served_model.h"

namespace lk {

// A conversation as the template gets it.
struct Conversation {
  OrderedJson messages, tools, variables;  // tools and variables may be null
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the answer goes on where the last message ends
};

struct ChatPrompt {
  std::vector<int32_t> ids;
  std::string tail;  // the end of the rendered text
};

// messages, tools (left out if tool_choice is "none"), chat_template_kwargs, reasoning_effort,
// add_generation_prompt and continue_final_message of a request. Contents become strings, text
// parts are joined by newlines, arguments of tool calls become objects. Errors: 400 with the
// field's path ("messages[2].content").
ApiResult<Conversation> read_conversation(const OrderedJson& body, const ServedModel& served);

// The template of gpt-oss (the harmony format).
bool speaks_harmony(const ServedModel& served);
// Roles as the model's template knows them. gpt-oss shows one system or developer message, the
// first: all of them are put into that one. To other templates a developer is the system.
void fit_roles(OrderedJson& messages, const ServedModel& served);

// Parts of the above, for other shapes of requests. `name` is the field's path.
ApiResult<std::string> read_content(const OrderedJson& content, const std::string& name);
// {"name", "arguments"} of a call that the model made.
ApiResult<OrderedJson> read_called_function(const OrderedJson& function, const std::string& name);
// Errors: 400 for "required" and for a named tool.
ApiResult<std::string> read_tool_choice(const OrderedJson& body);
ApiResult<OrderedJson> read_template_variables(const OrderedJson& body);

// Through the template and the tokenizer. The template writes BOS itself where the model wants one;
// the tokenizer adds none. Errors: 400, the template's own message.
ApiResult<ChatPrompt> encode_conversation(Conversation conversation, const ServedModel& served);

}  // namespace lk
