#include "text/chat_template.h"

#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/mmap_file.h"

namespace lk {
namespace {

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

// One message as the template sees it: without null fields, and with its reasoning under every name
// that templates read.
OrderedJson normalize_message(const OrderedJson& message) {
  OrderedJson out = OrderedJson::object();
  const OrderedJson* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (found == message.end() || found->is_null()) continue;
    reasoning = &*found;
    break;
  }
  // Keys are appended, not assigned: each assignment would search all keys before it.
  auto& fields = *out.get_ptr<OrderedJson::object_t*>();
  // "thinking" comes first, for the order shows in a template that prints the whole message.
  if (reasoning != nullptr) fields.emplace_back("thinking", *reasoning);
  bool has_content = false;
  for (const auto& [key, value] : message.items()) {
    if (value.is_null()) continue;
    has_content = has_content || key == "reasoning_content";
    if (reasoning != nullptr && key == "thinking") {
      fields.front().second = value;
    } else {
      fields.emplace_back(key, value);
    }
  }
  if (reasoning != nullptr && !has_content) fields.emplace_back("reasoning_content", *reasoning);
  return out;
}

Result<std::string> named_template(const OrderedJson& list, std::string_view wanted,
                                   const std::string& path) {
  for (const auto& entry : list) {
    const auto name = entry.is_object() ? entry.find("name") : entry.end();
    const auto source = entry.is_object() ? entry.find("template") : entry.end();
    if (!entry.is_object() || name == entry.end() || source == entry.end() || !name->is_string() ||
        !source->is_string()) {
      return invalid(
          "{}: chat_template is a list, but an entry is no object with a name and a template",
          path);
    }
    if (name->get_ref<const std::string&>() == wanted) return source->get<std::string>();
  }
  return fail(ErrorKind::kNotFound, "{}: chat_template has no template named '{}'", path, wanted);
}

}  // namespace

ChatTemplate::ChatTemplate() : clock_(local_time) {}

Result<ChatTemplate> ChatTemplate::parse(std::string source, std::string name) {
  ChatTemplate out;
  LK_ASSIGN_OR_RETURN(out.main_, jinja::Template::parse(source, std::move(name)));
  out.source_ = std::move(source);
  return out;
}

Result<ChatTemplate> ChatTemplate::load(const std::string& model_dir,
                                        const std::string& template_file) {
  namespace fs = std::filesystem;
  const std::string config_path = (fs::path(model_dir) / "tokenizer_config.json").string();
  OrderedJson config = OrderedJson::object();
  std::error_code ec;
  if (fs::exists(config_path, ec)) {
    LK_ASSIGN_OR_RETURN(config, read_ordered_json_file(config_path));
    if (!config.is_object()) return invalid("{} is no JSON object", config_path);
  }

  const fs::path file = fs::path(model_dir) / "chat_template.jinja";
  const fs::path tool_file = fs::path(model_dir) / "additional_chat_templates" / "tool_use.jinja";
  std::string tool_source, tool_name;
  std::optional<ChatTemplate> out;
  const auto field = config.find("chat_template");
  if (!template_file.empty()) {
    LK_ASSIGN_OR_RETURN(std::string source, read_file(template_file, jinja::kMaxSourceBytes));
    LK_ASSIGN_OR_RETURN(out, parse(std::move(source), template_file));
  } else if (fs::exists(file, ec)) {
    LK_ASSIGN_OR_RETURN(std::string source, read_file(file.string(), jinja::kMaxSourceBytes));
    LK_ASSIGN_OR_RETURN(out, parse(std::move(source), "chat_template.jinja"));
    if (fs::exists(tool_file, ec)) {
      LK_ASSIGN_OR_RETURN(tool_source, read_file(tool_file.string(), jinja::kMaxSourceBytes));
      tool_name = "additional_chat_templates/tool_use.jinja";
    }
  } else if (field == config.end() || field->is_null()) {
    return fail(ErrorKind::kNotFound,
                "{} has no chat template: neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json",
                model_dir);
  } else if (field->is_string()) {
    LK_ASSIGN_OR_RETURN(out,
                        parse(field->get<std::string>(), "tokenizer_config.json chat_template"));
  } else if (field->is_array()) {
    LK_ASSIGN_OR_RETURN(std::string source, named_template(*field, "default", config_path));
    LK_ASSIGN_OR_RETURN(out,
                        parse(std::move(source), "tokenizer_config.json chat_template 'default'"));
    if (auto tool_use = named_template(*field, "tool_use", config_path)) {
      tool_source = std::move(*tool_use);
      tool_name = "tokenizer_config.json chat_template 'tool_use'";
    }
  } else {
    return invalid("{}: chat_template is neither text nor a list", config_path);
  }
  if (!tool_name.empty()) {
    LK_ASSIGN_OR_RETURN(out->with_tools_, jinja::Template::parse(tool_source, tool_name));
  }

  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    auto token = config.find(name);
    if (token == config.end() || token->is_null()) continue;
    const OrderedJson& text =
        token->is_object() && token->contains("content") ? (*token)["content"] : *token;
    if (!text.is_string())
      return invalid("{}: {} is neither text nor an object with text as content", config_path,
                     name);
    out->special_tokens_.emplace_back(name, std::make_shared<const OrderedJson>(text));
  }
  return *std::move(out);
}

Result<std::string> ChatTemplate::render(const OrderedJson& messages, const OrderedJson& tools,
                                         const OrderedJson& extra_variables,
                                         bool add_generation_prompt) const {
  if (!messages.is_array()) return invalid("messages must be an array");
  if (!tools.is_null() && !tools.is_array()) return invalid("tools must be an array or null");
  if (!extra_variables.is_null() && !extra_variables.is_object()) {
    return invalid("the template's variables must be an object");
  }
  if (messages.empty()) {
    return invalid(
        "Cannot apply chat template to an empty conversation. Provide at least one message.");
  }
  OrderedJson chat = OrderedJson::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) return invalid("message {} must be an object", i);
    chat.push_back(normalize_message(messages[i]));
  }
  if (!tools.is_null()) {
    for (size_t i = 0; i < tools.size(); ++i) {
      if (!tools[i].is_object()) return invalid("tool {} must be an object", i);
    }
  }

  const OrderedJson nothing;
  const OrderedJson prompt = add_generation_prompt;
  std::vector<jinja::Template::Variable> variables = {{"documents", &nothing}};
  for (const auto& [name, text] : special_tokens_) variables.emplace_back(name, text.get());
  if (extra_variables.is_object()) {
    for (const auto& [name, value] : extra_variables.items()) variables.emplace_back(name, &value);
  }
  variables.emplace_back("messages", &chat);
  variables.emplace_back("tools", &tools);
  variables.emplace_back("add_generation_prompt", &prompt);
  const jinja::Template& chosen = with_tools_ && !tools.is_null() ? *with_tools_ : main_;
  return chosen.render(variables, clock_);
}

}  // namespace lk
