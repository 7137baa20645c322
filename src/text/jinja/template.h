// A Jinja template: parsed once, rendered any number of times. Immutable, cheap to copy; rendering
// is thread-safe.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/jinja/limits.h"
#include "text/jinja/runtime.h"

namespace lk::jinja {

struct Program;

class Template {
 public:
  // `name` stands in error sentences: "chat_template.jinja line 12: tag 'import' is not supported".
  // Errors: kInvalid (syntax), kUnsupported (a tag, filter, test or function that does not exist
  // here).
  static Result<Template> parse(std::string_view source, std::string name);

  // Renders with these variables. Errors: kInvalid; raise_exception's message is told as it is, any
  // other begins with name and line.
  using Variable = std::pair<std::string, const OrderedJson*>;
  Result<std::string> render(const std::vector<Variable>& variables, const Clock& clock,
                             const Limits& limits = {}) const;

 private:
  std::shared_ptr<const Program> program_;
  std::string name_;
};

}  // namespace lk::jinja
