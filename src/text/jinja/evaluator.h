// What running a template needs besides its nodes: scopes and the place where text goes. One
// rendering, one thread.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace lk::jinja {

using Variables = std::unordered_map<std::string, Value>;

struct Scope {
  Scope* parent = nullptr;
  std::vector<Value> slots;
  bool captured = false;  // a macro was defined in it or within it: it must outlive its block
};

struct Context {
  Runtime& rt;
  const Variables& variables;
  Scope* scope = nullptr;
  std::string* out = nullptr;
  std::vector<std::unique_ptr<Scope>> kept;  // captured scopes, until the rendering ends

  Value& variable(const VariableRef& ref) const {
    Scope* at = scope;
    for (int i = 0; i < ref.hops; ++i) at = at->parent;
    return at->slots[static_cast<size_t>(ref.slot)];
  }
  void write(std::string_view text);
};

// Enters a scope under `parent` and leaves it on destruction.
class ScopeGuard {
 public:
  ScopeGuard(Context& cx, const ScopeInfo& info, Scope* parent);
  ~ScopeGuard();
  ScopeGuard(const ScopeGuard&) = delete;
  Scope& scope() { return *scope_; }
  // Gives every variable its starting value.
  void start();

 private:
  Context& cx_;
  const ScopeInfo& info_;
  std::unique_ptr<Scope> scope_;
  Scope* before_;
};

// Sends text to `*buffer` while it lives.
class Capture {
 public:
  Capture(Context& cx, std::string* buffer) : cx_(cx), before_(cx.out) { cx.out = buffer; }
  ~Capture() { cx_.out = before_; }
  Capture(const Capture&) = delete;

 private:
  Context& cx_;
  std::string* before_;
};

// Parsed template, ready to run.
struct Program {
  Block body;
  ScopeInfo scope;
  // Throws RenderError.
  std::string run(Runtime& rt, const Variables& variables) const;
};

}  // namespace lk::jinja
