#include "server/api/response_input.h"

#include <nlohmann/json.hpp>

#include "server/api/fields.h"
#include "server/api/message_roles.h"

namespace lk {
namespace {

class InputReader {
 public:
  explicit InputReader(const ServedModel& served)
      : served_(served), harmony_(speaks_harmony(served)) {}

  ApiStatus read(const OrderedJson& item, const std::string& name) {
    if (!item.is_object())
      return bad_field(name, "{} must be an object, not {}", name, found_text(item));
    const Fields fields(item, name + ".");
    LK_API_ASSIGN_OR_RETURN(const std::string type,
                            fields.string_or("type", fields.has("role") ? "message" : ""));
    if (type == "message") return read_message(fields);
    if (type == "reasoning") return read_reasoning(fields);
    if (type == "function_call") return read_call(item, fields);
    if (type == "function_call_output") return read_call_output(fields);
    return bad_field(fields.name("type"), "{}type {} is not supported", name + ".",
                     found_text(OrderedJson(type)));
  }

  OrderedJson take() {
    end_turn();
    return std::move(messages_);
  }

 private:
  ApiResult<std::string> content_of(const Fields& fields, std::string_view key) const {
    const OrderedJson* content = fields.find(key);
    if (content == nullptr) return bad_field(fields.name(key), "{} is missing", fields.name(key));
    return read_content(*content, fields.name(key));
  }

  ApiStatus read_message(const Fields& fields) {
    LK_API_ASSIGN_OR_RETURN(const std::string role, fields.string_or("role", ""));
    if (role.empty()) return bad_field(fields.name("role"), "{} is missing", fields.name("role"));
    LK_API_RETURN_IF_ERROR(check_role(role, fields.name("role"), served_));
    LK_API_ASSIGN_OR_RETURN(std::string content, content_of(fields, "content"));
    if (role != "assistant") {
      end_turn();
      messages_.push_back({{"role", role}, {"content", std::move(content)}});
      return {};
    }
    if (turn_.contains("content") || turn_.contains("tool_calls")) end_turn();
    turn_["content"] = std::move(content);
    return {};
  }

  // An item that holds only encrypted content tells the model nothing.
  ApiStatus read_reasoning(const Fields& fields) {
    std::string text;
    for (const char* key : {"content", "summary"}) {
      const OrderedJson* parts = fields.find(key);
      if (!text.empty() || parts == nullptr) continue;
      if (!parts->is_array())
        return bad_field(fields.name(key), "{} must be a list, not {}", fields.name(key),
                         found_text(*parts));
      for (size_t i = 0; i < parts->size(); ++i) {
        const OrderedJson& part = (*parts)[i];
        const std::string path = fields.name(key) + "[" + std::to_string(i) + "]";
        if (!part.is_object())
          return bad_field(path, "{} must be an object, not {}", path, found_text(part));
        LK_API_ASSIGN_OR_RETURN(const std::string piece,
                                Fields(part, path + ".").string_or("text", ""));
        text += (text.empty() ? "" : "\n") + piece;
      }
    }
    if (text.empty()) return {};
    if (!turn_.empty()) end_turn();
    turn_["reasoning_content"] = std::move(text);
    return {};
  }

  ApiStatus read_call(const OrderedJson& item, const Fields& fields) {
    LK_API_ASSIGN_OR_RETURN(std::string id, fields.string_or("call_id", ""));
    std::string path = fields.name("");
    path.pop_back();
    OrderedJson function = {{"name", item.value("name", OrderedJson())},
                            {"arguments", item.value("arguments", OrderedJson())}};
    LK_API_ASSIGN_OR_RETURN(function, read_called_function(function, path));
    // gpt-oss' template refuses content, reasoning and a call in one message.
    if (harmony_ && turn_.contains("content")) {
      const OrderedJson reasoning = turn_.value("reasoning_content", OrderedJson());
      turn_.erase("reasoning_content");
      end_turn();
      if (!reasoning.is_null()) turn_["reasoning_content"] = reasoning;
    }
    turn_["tool_calls"].push_back(
        {{"id", std::move(id)}, {"type", "function"}, {"function", std::move(function)}});
    return {};
  }

  ApiStatus read_call_output(const Fields& fields) {
    LK_API_ASSIGN_OR_RETURN(std::string id, fields.string_or("call_id", ""));
    LK_API_ASSIGN_OR_RETURN(std::string content, content_of(fields, "output"));
    end_turn();
    messages_.push_back(
        {{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", std::move(content)}});
    return {};
  }

  void end_turn() {
    if (turn_.empty()) return;
    OrderedJson message = {{"role", "assistant"}, {"content", ""}};
    message.update(turn_);
    messages_.push_back(std::move(message));
    turn_ = OrderedJson::object();
  }

  const ServedModel& served_;
  bool harmony_;
  OrderedJson messages_ = OrderedJson::array();
  OrderedJson turn_ = OrderedJson::object();  // the model's, not ended yet
};

// {"type", "name", "description", "parameters"} -> {"type", "function": {…}}.
ApiResult<OrderedJson> read_flat_tools(const Fields& fields) {
  const OrderedJson* tools = fields.find("tools");
  if (tools == nullptr) return OrderedJson();
  if (!tools->is_array())
    return bad_field("tools", "tools must be a list, not {}", found_text(*tools));
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const OrderedJson& tool = (*tools)[i];
    const std::string path = "tools[" + std::to_string(i) + "]";
    if (!tool.is_object())
      return bad_field(path, "{} must be an object, not {}", path, found_text(tool));
    const Fields inner(tool, path + ".");
    LK_API_ASSIGN_OR_RETURN(const std::string type, inner.string_or("type", ""));
    if (type != "function")
      return bad_field(path + ".type", "{}.type {} is not supported, only \"function\" is", path,
                       found_text(OrderedJson(type)));
    LK_API_ASSIGN_OR_RETURN(const std::string name, inner.string_or("name", ""));
    if (name.empty()) return bad_field(path + ".name", "{}.name is missing", path);
    OrderedJson function = {{"name", name}};
    for (const char* key : {"description", "parameters"}) {
      if (const OrderedJson* value = inner.find(key)) function[key] = *value;
    }
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out.empty() ? OrderedJson() : out;
}

}  // namespace

ApiResult<Conversation> read_response_input(const OrderedJson& body, const ServedModel& served) {
  const Fields fields(body);
  const OrderedJson* input = fields.find("input");
  if (input == nullptr) return bad_field("input", "input is missing");
  Conversation out;
  if (input->is_string()) {
    out.messages = OrderedJson::array({{{"role", "user"}, {"content", *input}}});
  } else {
    if (!input->is_array() || input->empty())
      return bad_field("input", "input must be a string or a list of items, not {}",
                       found_text(*input));
    InputReader reader(served);
    for (size_t i = 0; i < input->size(); ++i) {
      LK_API_RETURN_IF_ERROR(reader.read((*input)[i], "input[" + std::to_string(i) + "]"));
    }
    out.messages = reader.take();
    if (out.messages.empty()) return bad_field("input", "input holds no message");
  }
  LK_API_ASSIGN_OR_RETURN(std::string instructions, fields.string_or("instructions", ""));
  if (!instructions.empty()) {
    OrderedJson first = {{"role", "system"}, {"content", std::move(instructions)}};
    out.messages.insert(out.messages.begin(), std::move(first));
  }
  fit_roles(out.messages, served);
  LK_API_ASSIGN_OR_RETURN(const std::string choice, read_tool_choice(body));
  LK_API_ASSIGN_OR_RETURN(out.tools, read_flat_tools(fields));
  if (choice == "none") out.tools = nullptr;
  LK_API_ASSIGN_OR_RETURN(out.variables, read_template_variables(body));
  if (const OrderedJson* reasoning = fields.find("reasoning")) {
    if (!reasoning->is_object())
      return bad_field("reasoning", "reasoning must be an object, not {}", found_text(*reasoning));
    LK_API_ASSIGN_OR_RETURN(std::string effort,
                            Fields(*reasoning, "reasoning.").string_or("effort", ""));
    if (!effort.empty()) out.variables["reasoning_effort"] = std::move(effort);
  }
  return out;
}

}  // namespace lk
