// Renders a conversation to the text a model was trained on, exactly as Transformers'
// apply_chat_template does. Immutable after loading; rendering is thread-safe.
#pragma once

#include <ctime>
#include <functional>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "text/jinja/template.h"

namespace lk {

class ChatTemplate {
 public:
  // Errors: kInvalid, kUnsupported; the sentence begins with `name` and the line.
  static Result<ChatTemplate> parse(std::string source, std::string name);

  // Finds the template as Transformers does: chat_template.jinja in the folder (and its variants in
  // additional_chat_templates/), else chat_template in tokenizer_config.json (text, or a list of
  // {name, template} of which "default" is taken, and "tool_use" when there are tools). Takes
  // bos_token, eos_token and the like from tokenizer_config.json. Errors: kNotFound if there is no
  // template.
  // `template_file`, if given, stands in for all of these.
  static Result<ChatTemplate> load(const std::string& model_dir,
                                   const std::string& template_file = {});

  // The template's own text (without tools, where that is another one).
  const std::string& source() const { return source_; }

  // `messages` is an array of at least one object. As in Transformers, keys of a message whose
  // value is null are dropped, and reasoning_content, thinking and reasoning stand for each other.
  // `tools` is an array or null. `extra_variables` (an object, or null) reach the template by name
  // and win over the special tokens: enable_thinking, reasoning_effort, documents, … Errors:
  // kInvalid; the message of raise_exception is told as it is.
  Result<std::string> render(const OrderedJson& messages, const OrderedJson& tools,
                             const OrderedJson& extra_variables, bool add_generation_prompt) const;

  // What strftime_now reads; local time by default. Set it before sharing the template.
  void set_clock(std::function<std::tm()> clock) { clock_ = std::move(clock); }

 private:
  ChatTemplate();

  std::string source_;
  jinja::Template main_;
  std::optional<jinja::Template> with_tools_;
  std::vector<std::pair<std::string, std::shared_ptr<const OrderedJson>>> special_tokens_;
  std::function<std::tm()> clock_;
};

}  // namespace lk
