// Which names each statement declares and where its scopes begin, as jinja2's compiler sees it.
#include "text/jinja/ast.h"

namespace lk::jinja {

void Block::declare(Symbols& symbols) {
  for (StmtPtr& statement : body) statement->declare(symbols);
}

void Block::bind(Symbols& symbols) {
  for (StmtPtr& statement : body) statement->bind(symbols);
}

void Target::declare(Symbols& symbols, bool as_parameter) const {
  if (is_tuple) {
    for (const Target& part : parts) part.declare(symbols, as_parameter);
  } else if (!attribute.empty()) {
    symbols.load(name);
  } else if (as_parameter) {
    symbols.declare_parameter(name);
  } else {
    symbols.store(name);
  }
}

void Target::bind(Symbols& symbols) {
  for (Target& part : parts) part.bind(symbols);
  if (!is_tuple) ref = symbols.find(name);
}

void IfStmt::declare(Symbols& symbols) {
  test->declare(symbols);
  std::vector<Symbols::Added> branches;
  Symbols::Mark mark = symbols.begin_branch();
  then.declare(symbols);
  branches.push_back(symbols.take_branch(mark));
  mark = symbols.begin_branch();
  for (auto& branch : elifs) branch->declare(symbols);
  branches.push_back(symbols.take_branch(mark));
  mark = symbols.begin_branch();
  otherwise.declare(symbols);
  branches.push_back(symbols.take_branch(mark));
  symbols.merge(branches);
}

void IfStmt::bind(Symbols& symbols) {
  test->bind(symbols);
  then.bind(symbols);
  for (auto& branch : elifs) branch->bind(symbols);
  otherwise.bind(symbols);
}

void ForStmt::bind(Symbols& symbols) {
  items->bind(symbols);
  Symbols inner(&symbols, &body_scope);
  if (uses_loop) loop_slot = inner.declare_parameter("loop");
  target.declare(inner, true);
  body.declare(inner);
  Symbols other(&symbols, &otherwise_scope);
  otherwise.declare(other);
  if (filter) {
    Symbols test(&symbols, &filter_scope);
    filter_target = target;
    filter_target.declare(test, true);
    filter->declare(test);
    filter_target.bind(test);
    filter->bind(test);
  }
  target.bind(inner);
  body.bind(inner);
  otherwise.bind(other);
}

void SetStmt::declare(Symbols& symbols) {
  value->declare(symbols);
  target.declare(symbols, false);
}

void SetStmt::bind(Symbols& symbols) {
  value->bind(symbols);
  target.bind(symbols);
}

void BlockSetStmt::bind(Symbols& symbols) {
  Symbols inner(&symbols, &scope);
  body.declare(inner);
  if (filter) filter->declare(inner);
  body.bind(inner);
  if (filter) filter->bind(inner);
  target.bind(symbols);
}

void FilterBlockStmt::bind(Symbols& symbols) {
  Symbols inner(&symbols, &scope);
  body.declare(inner);
  filter->declare(inner);
  body.bind(inner);
  filter->bind(inner);
}

void WithStmt::declare(Symbols& symbols) {
  for (auto& [target, value] : values) value->declare(symbols);
}

void WithStmt::bind(Symbols& symbols) {
  Symbols inner(&symbols, &scope);
  for (auto& [target, value] : values) target.declare(inner, true);
  body.declare(inner);
  for (auto& [target, value] : values) {
    value->bind(symbols);
    target.bind(inner);
  }
  body.bind(inner);
}

void GenerationStmt::bind(Symbols& symbols) {
  Symbols inner(&symbols, &scope);
  body.declare(inner);
  body.bind(inner);
}

void MacroBody::bind(Symbols& outer) {
  Symbols inner(&outer, &scope);
  for (Parameter& parameter : parameters) parameter.slot = inner.declare_parameter(parameter.name);
  for (Parameter& parameter : parameters) {
    if (parameter.fallback) parameter.fallback->declare(inner);
  }
  const auto special = [&](bool used, const char* name) {
    if (!used) return -1;
    for (const Parameter& parameter : parameters) {
      if (parameter.name == name) return -1;
    }
    return inner.declare_parameter(name);
  };
  caller_slot = special(uses_caller, "caller");
  kwargs_slot = special(uses_kwargs, "kwargs");
  varargs_slot = special(uses_varargs, "varargs");
  body.declare(inner);
  for (Parameter& parameter : parameters) {
    if (parameter.fallback) parameter.fallback->bind(inner);
  }
  body.bind(inner);
}

void MacroStmt::bind(Symbols& symbols) {
  macro.bind(symbols);
  ref = symbols.find(macro.name);
}

void CallBlockStmt::bind(Symbols& symbols) {
  macro.bind(symbols);
  call->bind(symbols);
}

}  // namespace lk::jinja
