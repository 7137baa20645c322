#include <fmt/format.h>

#include "text/jinja/ast.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/globals.h"
#include "text/jinja/print.h"

namespace lk::jinja {

void Context::write(std::string_view text) {
  rt.charge_bytes(text.size());
  rt.check_string(out->size() + text.size());
  out->append(text);
}

ScopeGuard::ScopeGuard(Context& cx, const ScopeInfo& info, Scope* parent)
    : cx_(cx), info_(info), scope_(std::make_unique<Scope>()), before_(cx.scope) {
  scope_->parent = parent;
  scope_->slots.resize(info.slots.size());
  cx_.rt.charge(static_cast<int64_t>(info.slots.size() / 4));
  cx_.scope = scope_.get();
  start();
}

void ScopeGuard::start() {
  for (size_t i = 0; i < info_.slots.size(); ++i) {
    const SlotStart& from = info_.slots[i];
    Value& slot = scope_->slots[i];
    switch (from.from) {
      case SlotStart::From::kOuter:
        slot = cx_.variable(from.outer);
        break;
      case SlotStart::From::kContext: {
        const auto found = cx_.variables.find(from.name);
        if (found != cx_.variables.end()) {
          slot = found->second;
        } else {
          const Value* global = find_global(from.name);
          slot = global != nullptr ? *global : Value();
        }
        break;
      }
      default:
        slot = Value();
    }
  }
}

ScopeGuard::~ScopeGuard() {
  cx_.scope = before_;
  if (scope_->captured) cx_.kept.push_back(std::move(scope_));
}

Flow Block::exec(Context& cx) const {
  for (const StmtPtr& statement : body) {
    cx.rt.charge(1);
    cx.rt.line = statement->line;
    const Flow flow = statement->exec(cx);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Flow TextStmt::exec(Context& cx) const {
  cx.write(text);
  return Flow::kNext;
}

Flow OutputStmt::exec(Context& cx) const {
  const Value result = value->eval(cx);
  if (result.is_string()) {
    cx.write(result.text());
  } else {
    cx.write(to_str(cx.rt, result));
  }
  return Flow::kNext;
}

Flow IfStmt::exec(Context& cx) const {
  Runtime::Deeper deeper(cx.rt);
  if (truthy(cx.rt, test->eval(cx))) return then.exec(cx);
  for (const auto& branch : elifs) {
    if (truthy(cx.rt, branch->test->eval(cx))) return branch->then.exec(cx);
  }
  return otherwise.exec(cx);
}

void Target::check(Context& cx) const {
  if (!attribute.empty()) {
    const Value& space = cx.variable(ref);
    if (space.kind() != Kind::kObject || dynamic_cast<Namespace*>(&space.object()) == nullptr) {
      raise_error("cannot assign attribute on non-namespace object");
    }
  }
  for (const Target& part : parts) part.check(cx);
}

void Target::assign(Context& cx, Value value) const {
  cx.rt.charge(1);
  if (!attribute.empty()) {
    const Value space = cx.variable(ref);
    auto* target =
        space.kind() == Kind::kObject ? dynamic_cast<Namespace*>(&space.object()) : nullptr;
    if (target == nullptr) raise_error("cannot assign attribute on non-namespace object");
    target->set(attribute, std::move(value));
    return;
  }
  if (!is_tuple) {
    cx.variable(ref) = std::move(value);
    return;
  }
  if (!is_iterable(value)) {
    if (value.kind() == Kind::kObject || !value.is_undefined()) {
      raise_error(fmt::format("cannot unpack non-iterable {} object", value.type_name()));
    }
  }
  const std::vector<Value> items = list_of(cx.rt, value);
  if (items.size() > parts.size()) {
    raise_error(fmt::format("too many values to unpack (expected {})", parts.size()));
  }
  if (items.size() < parts.size()) {
    raise_error(fmt::format("not enough values to unpack (expected {}, got {})", parts.size(),
                            items.size()));
  }
  for (size_t i = 0; i < parts.size(); ++i) parts[i].assign(cx, items[i]);
}

Flow SetStmt::exec(Context& cx) const {
  target.check(cx);
  target.assign(cx, value->eval(cx));
  return Flow::kNext;
}

Flow BlockSetStmt::exec(Context& cx) const {
  Scope* const outer = cx.scope;
  Value result;
  {
    ScopeGuard scope(cx, this->scope, outer);
    std::string text;
    {
      Runtime::Deeper deeper(cx.rt);
      Capture capture(cx, &text);
      const Flow flow = body.exec(cx);
      if (flow != Flow::kNext) return flow;
    }
    result = Value::string(std::move(text));
    if (filter) result = static_cast<const FilterExpr&>(*filter).apply(cx, result);
  }
  target.check(cx);
  target.assign(cx, std::move(result));
  return Flow::kNext;
}

Flow FilterBlockStmt::exec(Context& cx) const {
  ScopeGuard scope(cx, this->scope, cx.scope);
  std::string text;
  {
    Runtime::Deeper deeper(cx.rt);
    Capture capture(cx, &text);
    const Flow flow = body.exec(cx);
    if (flow != Flow::kNext) return flow;
  }
  cx.write(to_str(
      cx.rt, static_cast<const FilterExpr&>(*filter).apply(cx, Value::string(std::move(text)))));
  return Flow::kNext;
}

Flow WithStmt::exec(Context& cx) const {
  Runtime::Deeper deeper(cx.rt);
  std::vector<Value> given;
  for (const auto& [target, value] : values) given.push_back(value->eval(cx));
  ScopeGuard scope(cx, this->scope, cx.scope);
  for (size_t i = 0; i < given.size(); ++i) values[i].first.assign(cx, std::move(given[i]));
  return body.exec(cx);
}

Flow GenerationStmt::exec(Context& cx) const {
  Runtime::Deeper deeper(cx.rt);
  ScopeGuard scope(cx, this->scope, cx.scope);
  return body.exec(cx);
}

std::string Program::run(Runtime& rt, const Variables& variables) const {
  std::string out;
  Context cx{rt, variables, nullptr, &out, {}};
  ScopeGuard scope(cx, this->scope, nullptr);
  body.exec(cx);
  return out;
}

}  // namespace lk::jinja
