#include "server/api/chat_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/api/fields.h"
#include "server/api/message_roles.h"

namespace lk {
namespace {

constexpr size_t kTailBytes = 512;
constexpr std::string_view kTextParts[] = {"text", "input_text", "output_text"};
// Names that a template's variables cannot take.
constexpr std::string_view kOwnVariables[] = {"messages", "tools", "add_generation_prompt"};

std::string at(const std::string& name, size_t index) {
  return name + "[" + std::to_string(index) + "]";
}

template <typename Names>
bool holds(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

ApiResult<OrderedJson> read_tool_calls(const OrderedJson& calls, const std::string& name) {
  if (!calls.is_array())
    return bad_field(name, "{} must be a list, not {}", name, found_text(calls));
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string path = at(name, i);
    const auto function = calls[i].is_object() ? calls[i].find("function") : calls[i].end();
    if (!calls[i].is_object() || function == calls[i].end())
      return bad_field(path, "{} must be an object with a function", path);
    OrderedJson call = calls[i];
    LK_API_ASSIGN_OR_RETURN(call["function"], read_called_function(*function, path + ".function"));
    out.push_back(std::move(call));
  }
  return out;
}

// A message as templates expect it: content is a string.
ApiResult<OrderedJson> read_message(const OrderedJson& given, const std::string& name,
                                    const ServedModel& served) {
  if (!given.is_object())
    return bad_field(name, "{} must be an object, not {}", name, found_text(given));
  const Fields fields(given, name + ".");
  if (!fields.has("role")) return bad_field(fields.name("role"), "{}.role is missing", name);
  OrderedJson message = given;
  LK_API_ASSIGN_OR_RETURN(const std::string role, fields.string_or("role", ""));
  LK_API_RETURN_IF_ERROR(check_role(role, fields.name("role"), served));
  if (const OrderedJson* calls = fields.find("tool_calls")) {
    LK_API_ASSIGN_OR_RETURN(message["tool_calls"],
                            read_tool_calls(*calls, fields.name("tool_calls")));
    if (message["tool_calls"].empty()) message.erase("tool_calls");
  }
  for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
    LK_API_RETURN_IF_ERROR(fields.string_or(key, ""));
  }
  const OrderedJson* content = fields.find("content");
  if (content == nullptr && role != "assistant")
    return bad_field(fields.name("content"), "{}.content is missing", name);
  message["content"] = "";
  if (content != nullptr) {
    LK_API_ASSIGN_OR_RETURN(message["content"], read_content(*content, fields.name("content")));
  }
  return message;
}

// Templates of gpt-oss show one call a message and take a tool's answer as that of the call before
// it: calls made at once are told one after the other, each followed by its answer.
OrderedJson part_parallel_calls(const OrderedJson& messages) {
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto calls = messages[i].find("tool_calls");
    if (calls == messages[i].end() || calls->size() < 2) {
      out.push_back(messages[i]);
      continue;
    }
    size_t answers_end = i + 1;
    while (answers_end < messages.size() && messages[answers_end]["role"] == "tool") ++answers_end;
    std::vector<bool> told(answers_end, false);
    for (size_t c = 0; c < calls->size(); ++c) {
      OrderedJson one = c == 0 ? messages[i] : OrderedJson{{"role", "assistant"}, {"content", ""}};
      one["tool_calls"] = OrderedJson::array({(*calls)[c]});
      out.push_back(std::move(one));
      for (size_t a = i + 1; a < answers_end; ++a) {
        if (told[a] || messages[a].value("tool_call_id", OrderedJson()) !=
                           (*calls)[c].value("id", OrderedJson()))
          continue;
        told[a] = true;
        out.push_back(messages[a]);
      }
    }
    for (size_t a = i + 1; a < answers_end; ++a) {
      if (!told[a]) out.push_back(messages[a]);
    }
    i = answers_end - 1;
  }
  return out;
}

ApiResult<OrderedJson> read_tools(const Fields& fields) {
  const OrderedJson* tools = fields.find("tools");
  if (tools == nullptr) return OrderedJson();
  if (!tools->is_array())
    return bad_field("tools", "tools must be a list, not {}", found_text(*tools));
  if (tools->empty()) return OrderedJson();
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string path = at("tools", i);
    const OrderedJson& tool = (*tools)[i];
    if (!tool.is_object())
      return bad_field(path, "{} must be an object, not {}", path, found_text(tool));
    LK_API_ASSIGN_OR_RETURN(const std::string type,
                            Fields(tool, path + ".").string_or("type", "function"));
    if (type != "function")
      return bad_field(path + ".type", "{}.type must be \"function\", not {}", path,
                       found_text(OrderedJson(type)));
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object() || !function->contains("name") ||
        !(*function)["name"].is_string())
      return bad_field(path + ".function", "{}.function must be an object with a name", path);
  }
  return *tools;
}

// What the template wrote up to the end of the last message's content.
ApiStatus cut_after_content(std::string& text, const OrderedJson& message) {
  if (message["role"] != "assistant")
    return bad_field("continue_final_message",
                     "continue_final_message needs an assistant's message at the end");
  std::string content = message["content"].get<std::string>();
  content.erase(content.find_last_not_of(" \t\r\n") + 1);
  const size_t begin = content.empty() ? std::string::npos : text.rfind(content);
  if (begin == std::string::npos)
    return bad_field(
        "continue_final_message",
        "continue_final_message: the template does not show the last message's content");
  text.resize(begin + content.size());
  return {};
}

}  // namespace

bool speaks_harmony(const ServedModel& served) {
  return served.parsers.reasoning == "openai_gptoss";
}

void fit_roles(OrderedJson& messages, const ServedModel& served) {
  if (!speaks_harmony(served)) {
    for (OrderedJson& message : messages) {
      if (message["role"] == "developer") message["role"] = "system";
    }
    return;
  }
  OrderedJson kept = OrderedJson::array();
  std::string instructions;
  for (OrderedJson& message : messages) {
    if (message["role"] != "developer" && message["role"] != "system") {
      kept.push_back(std::move(message));
      continue;
    }
    if (!instructions.empty()) instructions += "\n\n";
    instructions += message["content"].get_ref<const std::string&>();
  }
  if (kept.size() < messages.size()) {
    OrderedJson first = {{"role", "developer"}, {"content", std::move(instructions)}};
    kept.insert(kept.begin(), std::move(first));
  }
  messages = std::move(kept);
}

ApiResult<std::string> read_content(const OrderedJson& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    return bad_field(name, "{} must be a string or a list of text parts, not {}", name,
                     found_text(content));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const OrderedJson& part = content[i];
    const std::string path = at(name, i);
    if (i > 0) text += '\n';
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    if (!part.is_object())
      return bad_field(path, "{} must be an object, not {}", path, found_text(part));
    const Fields fields(part, path + ".");
    LK_API_ASSIGN_OR_RETURN(const std::string type, fields.string_or("type", "text"));
    if (!holds(kTextParts, type))
      return bad_field(path + ".type", "{}.type {} is not supported, only text is", path,
                       found_text(OrderedJson(type)));
    if (!fields.has("text")) return bad_field(path + ".text", "{}.text is missing", path);
    LK_API_ASSIGN_OR_RETURN(const std::string piece, fields.string_or("text", ""));
    text += piece;
  }
  return text;
}

ApiResult<OrderedJson> read_called_function(const OrderedJson& function, const std::string& name) {
  if (!function.is_object())
    return bad_field(name, "{} must be an object, not {}", name, found_text(function));
  const Fields fields(function, name + ".");
  if (!fields.has("name")) return bad_field(name + ".name", "{}.name is missing", name);
  LK_API_RETURN_IF_ERROR(fields.string_or("name", ""));
  OrderedJson out = function;
  const OrderedJson* arguments = fields.find("arguments");
  if (arguments == nullptr || (arguments->is_string() && arguments->get<std::string>().empty())) {
    out["arguments"] = OrderedJson::object();
  } else if (arguments->is_string()) {
    auto parsed = parse_ordered_json(arguments->get_ref<const std::string&>(), "arguments");
    if (parsed && parsed->is_object()) out["arguments"] = std::move(*parsed);
  } else if (!arguments->is_object()) {
    return bad_field(name + ".arguments", "{}.arguments must be a string with JSON, not {}", name,
                     found_text(*arguments));
  }
  return out;
}

ApiResult<std::string> read_tool_choice(const OrderedJson& body) {
  const OrderedJson* choice = Fields(body).find("tool_choice");
  if (choice == nullptr) return "auto";
  if (choice->is_string() && (*choice == "auto" || *choice == "none"))
    return choice->get<std::string>();
  return bad_field("tool_choice", "tool_choice {} is not supported, only \"auto\" and \"none\" are",
                   choice->is_object() ? "with a named tool" : found_text(*choice));
}

ApiResult<OrderedJson> read_template_variables(const OrderedJson& body) {
  const Fields fields(body);
  OrderedJson variables = OrderedJson::object();
  if (const OrderedJson* given = fields.find("chat_template_kwargs")) {
    if (!given->is_object())
      return bad_field("chat_template_kwargs", "chat_template_kwargs must be an object, not {}",
                       found_text(*given));
    variables = *given;
    for (std::string_view name : kOwnVariables) {
      if (variables.contains(std::string(name)))
        return bad_field("chat_template_kwargs", "chat_template_kwargs must not hold {}", name);
    }
  }
  if (const OrderedJson* documents = fields.find("documents")) variables["documents"] = *documents;
  LK_API_ASSIGN_OR_RETURN(std::string effort, fields.string_or("reasoning_effort", ""));
  if (!effort.empty() && !variables.contains("reasoning_effort"))
    variables["reasoning_effort"] = std::move(effort);
  return variables;
}

ApiResult<Conversation> read_conversation(const OrderedJson& body, const ServedModel& served) {
  const Fields fields(body);
  const OrderedJson* messages = fields.find("messages");
  if (messages == nullptr) return bad_field("messages", "messages is missing");
  if (!messages->is_array() || messages->empty())
    return bad_field("messages", "messages must be a list with at least one message, not {}",
                     found_text(*messages));
  Conversation out;
  out.messages = OrderedJson::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    LK_API_ASSIGN_OR_RETURN(OrderedJson message,
                            read_message((*messages)[i], at("messages", i), served));
    out.messages.push_back(std::move(message));
  }
  fit_roles(out.messages, served);
  LK_API_ASSIGN_OR_RETURN(const std::string choice, read_tool_choice(body));
  LK_API_ASSIGN_OR_RETURN(out.tools, read_tools(fields));
  if (choice == "none") out.tools = nullptr;
  LK_API_ASSIGN_OR_RETURN(out.variables, read_template_variables(body));
  LK_API_ASSIGN_OR_RETURN(out.continue_final_message,
                          fields.boolean_or("continue_final_message", false));
  LK_API_ASSIGN_OR_RETURN(out.add_generation_prompt,
                          fields.boolean_or("add_generation_prompt", !out.continue_final_message));
  if (out.add_generation_prompt && out.continue_final_message)
    return bad_field("continue_final_message",
                     "continue_final_message and add_generation_prompt exclude each other");
  return out;
}

ApiResult<ChatPrompt> encode_conversation(Conversation conversation, const ServedModel& served) {
  if (!served.chat_template) {
    return bad_field("messages",
                     "This model has no chat template ({}); give one with "
                     "--chat-template, or use /v1/completions.",
                     served.no_template.message);
  }
  if (speaks_harmony(served)) conversation.messages = part_parallel_calls(conversation.messages);
  auto text =
      served.chat_template->render(conversation.messages, conversation.tools,
                                   conversation.variables, conversation.add_generation_prompt);
  if (!text) return bad_field("messages", "{}", text.error().message);
  LK_API_RETURN_IF_ERROR(check_odd_roles(conversation.messages, *text));
  if (conversation.continue_final_message) {
    LK_API_RETURN_IF_ERROR(cut_after_content(*text, conversation.messages.back()));
  }
  auto ids = served.tokenizer->encode(*text, {.add_special_tokens = false});
  if (!ids) return bad_field("messages", "messages: {}", ids.error().message);
  if (ids->empty()) return bad_field("messages", "the template made an empty prompt of messages");
  const size_t tail = std::min(text->size(), kTailBytes);
  return ChatPrompt{std::move(*ids), text->substr(text->size() - tail)};
}

}  // namespace lk
