// The input of /v1/responses as a conversation. Stateless; thread-safe.
#pragma once

#include "base/json.h"
#include "server/api/api_error.h"
#include "server/api/chat_prompt.h"

namespace lk {

// input (text, or items: message, reasoning, function_call, function_call_output), instructions,
// tools, tool_choice, reasoning.effort and chat_template_kwargs. What the model said between two
// messages of others becomes one message. Errors: 400 with the field's path ("input[2].type").
ApiResult<Conversation> read_response_input(const OrderedJson& body, const ServedModel& served);

}  // namespace lk
