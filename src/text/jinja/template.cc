#include "text/jinja/template.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "text/jinja/evaluator.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/print.h"

namespace lk::jinja {

Result<Template> Template::parse(std::string_view source, std::string name) {
  if (source.size() > kMaxSourceBytes) {
    return invalid("{}: a template of {} bytes is over the limit of {}", name, source.size(),
                   kMaxSourceBytes);
  }
  try {
    Template result;
    result.program_ = std::make_shared<const Program>(Parser(tokenize(source)).parse());
    result.name_ = std::move(name);
    return result;
  } catch (const SyntaxError& e) {
    const bool known = e.message.find("is not supported") == e.message.npos;
    return fail(known ? ErrorKind::kInvalid : ErrorKind::kUnsupported, "{} line {}: {}", name,
                e.line, e.message);
  }
}

Result<std::string> Template::render(const std::vector<Variable>& variables, const Clock& clock,
                                     const Limits& limits) const {
  Runtime rt(limits, clock);
  try {
    Variables values;
    for (const auto& [key, json] : variables) values.insert_or_assign(key, from_json(rt, *json));
    return program_->run(rt, values);
  } catch (const RenderError& e) {
    if (e.from_template) return invalid("{}", e.message);
    return invalid("{} line {}: {}", name_, rt.line, e.message);
  }
}

}  // namespace lk::jinja
