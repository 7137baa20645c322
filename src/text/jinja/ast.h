// The parsed template. Each node knows the names it uses (declare, bind: while parsing) and how to
// run (eval, exec). Constant after parsing: any number of threads may run it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/filters.h"
#include "text/jinja/objects.h"
#include "text/jinja/operators.h"
#include "text/jinja/symbols.h"
#include "text/jinja/tests.h"
#include "text/jinja/value.h"

namespace lk::jinja {

struct Context;  // evaluator.h

struct Expr {
  int line = 0;
  int height = 1;

  virtual ~Expr() = default;
  // Counts the step and the depth, then runs do_eval.
  Value eval(Context& cx) const;
  virtual Value do_eval(Context& cx) const = 0;
  virtual void each_child(const std::function<void(Expr&)>&) {}
  virtual void declare(Symbols& symbols);
  virtual void bind(Symbols& symbols);
};
using ExprPtr = std::unique_ptr<Expr>;

enum class Flow { kNext, kBreak, kContinue };

struct Stmt {
  int line = 0;

  virtual ~Stmt() = default;
  virtual Flow exec(Context& cx) const = 0;
  virtual void declare(Symbols& symbols) = 0;
  virtual void bind(Symbols& symbols) = 0;
};
using StmtPtr = std::unique_ptr<Stmt>;

struct Block {
  std::vector<StmtPtr> body;
  Flow exec(Context& cx) const;
  void declare(Symbols& symbols);
  void bind(Symbols& symbols);
};

// ---- expressions

struct ConstExpr : Expr {
  Value value;
  Value do_eval(Context&) const override { return value; }
};

struct NameExpr : Expr {
  std::string name;
  VariableRef ref;
  std::shared_ptr<const UndefinedInfo> missing;  // "'name' is undefined"
  Value do_eval(Context& cx) const override;
  void declare(Symbols& symbols) override { symbols.load(name); }
  void bind(Symbols& symbols) override { ref = symbols.find(name); }
};

struct ListExpr : Expr {
  std::vector<ExprPtr> items;
  bool tuple = false;
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override;
};

struct DictExpr : Expr {
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override;
};

struct UnaryExpr : Expr {
  enum class Op { kNot, kNegate, kPlus } op = Op::kNot;
  ExprPtr operand;
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override { visit(*operand); }
};

struct BinaryExpr : Expr {
  BinaryFunction function = nullptr;
  ExprPtr left, right;
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override { visit(*left), visit(*right); }
};

struct LogicExpr : Expr {
  bool is_and = false;
  ExprPtr left, right;
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override { visit(*left), visit(*right); }
};

struct ConcatExpr : Expr {
  std::vector<ExprPtr> parts;
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override;
};

struct CompareExpr : Expr {
  enum class Op { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
  ExprPtr first;
  std::vector<std::pair<Op, ExprPtr>> rest;
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override;
};

struct ConditionalExpr : Expr {
  ExprPtr test, then, otherwise;  // otherwise may be null
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override;
};

struct AttributeExpr : Expr {
  ExprPtr object;
  std::string name;
  Value key;  // the name as a value
  Method string_method = nullptr, dict_method = nullptr;
  std::shared_ptr<const UndefinedInfo> missing_in_dict;
  Value do_eval(Context& cx) const override;
  Value get(Context& cx, const Value& from) const;
  void each_child(const std::function<void(Expr&)>& visit) override { visit(*object); }
};

struct ItemExpr : Expr {
  ExprPtr object, key;
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override { visit(*object), visit(*key); }
};

struct SliceExpr : Expr {
  ExprPtr object, start, stop, step;  // bounds may be null
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override;
};

struct ArgumentList {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, star_star;  // *args, **kwargs; may be null
  CallArgs eval(Context& cx) const;
  void each_child(const std::function<void(Expr&)>& visit);
};

struct CallExpr : Expr {
  ExprPtr callee;
  ArgumentList arguments;
  // `caller` is the body of a call block, or null.
  Value call(Context& cx, const Value* caller) const;
  Value do_eval(Context& cx) const override { return call(cx, nullptr); }
  void each_child(const std::function<void(Expr&)>& visit) override;
};

struct FilterExpr : Expr {
  Filter filter = nullptr;
  ExprPtr input;  // null: the captured text of a filter block or a block set
  ArgumentList arguments;
  Value apply(Context& cx, const Value& captured) const;
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override;
};

struct TestExpr : Expr {
  Test test = nullptr;
  ExprPtr input;
  ArgumentList arguments;
  bool negated = false;
  Value do_eval(Context& cx) const override;
  void each_child(const std::function<void(Expr&)>& visit) override;
};

// ---- statements

struct Target {
  std::string name;  // of a variable, or of the namespace if `attribute` is set
  std::string attribute;
  std::vector<Target> parts;  // not empty or is_tuple: unpacked into
  bool is_tuple = false;
  VariableRef ref;
  void declare(Symbols& symbols, bool as_parameter) const;
  void bind(Symbols& symbols);
  // Raises unless every a.b means a namespace.
  void check(Context& cx) const;
  void assign(Context& cx, Value value) const;
};

struct TextStmt : Stmt {
  std::string text;
  Flow exec(Context& cx) const override;
  void declare(Symbols&) override {}
  void bind(Symbols&) override {}
};

struct OutputStmt : Stmt {
  ExprPtr value;
  Flow exec(Context& cx) const override;
  void declare(Symbols& symbols) override { value->declare(symbols); }
  void bind(Symbols& symbols) override { value->bind(symbols); }
};

struct IfStmt : Stmt {
  ExprPtr test;
  Block then;
  std::vector<std::unique_ptr<IfStmt>> elifs;  // with test and then only
  Block otherwise;
  Flow exec(Context& cx) const override;
  void declare(Symbols& symbols) override;
  void bind(Symbols& symbols) override;
};

struct ForStmt : Stmt {
  Target target;
  ExprPtr items;
  ExprPtr filter;  // may be null
  bool recursive = false;
  bool uses_loop = false;
  Block body, otherwise;
  ScopeInfo body_scope, filter_scope, otherwise_scope;
  Target filter_target;  // the target as seen from filter_scope
  int loop_slot = -1;
  Flow exec(Context& cx) const override;
  Flow run(Context& cx, const Value& over, int depth0) const;
  void declare(Symbols& symbols) override { items->declare(symbols); }
  void bind(Symbols& symbols) override;
};

struct LoopControlStmt : Stmt {
  Flow flow = Flow::kBreak;
  Flow exec(Context&) const override { return flow; }
  void declare(Symbols&) override {}
  void bind(Symbols&) override {}
};

struct SetStmt : Stmt {
  Target target;
  ExprPtr value;
  Flow exec(Context& cx) const override;
  void declare(Symbols& symbols) override;
  void bind(Symbols& symbols) override;
};

struct BlockSetStmt : Stmt {
  Target target;
  ExprPtr filter;  // a FilterExpr or null
  Block body;
  ScopeInfo scope;
  Flow exec(Context& cx) const override;
  void declare(Symbols& symbols) override { target.declare(symbols, false); }
  void bind(Symbols& symbols) override;
};

struct FilterBlockStmt : Stmt {
  ExprPtr filter;  // a FilterExpr
  Block body;
  ScopeInfo scope;
  Flow exec(Context& cx) const override;
  void declare(Symbols& symbols) override { filter->declare(symbols); }
  void bind(Symbols& symbols) override;
};

struct WithStmt : Stmt {
  std::vector<std::pair<Target, ExprPtr>> values;
  Block body;
  ScopeInfo scope;
  Flow exec(Context& cx) const override;
  void declare(Symbols& symbols) override;
  void bind(Symbols& symbols) override;
};

// {% generation %}: marks what an assistant said; rendered as its body.
struct GenerationStmt : Stmt {
  Block body;
  ScopeInfo scope;
  Flow exec(Context& cx) const override;
  void declare(Symbols&) override {}
  void bind(Symbols& symbols) override;
};

// The callable part of {% macro %} and {% call %}.
struct MacroBody {
  std::string name;
  struct Parameter {
    std::string name;
    ExprPtr fallback;  // may be null
    int slot = -1;
  };
  std::vector<Parameter> parameters;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;  // as undeclared names
  int caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;
  Block body;
  ScopeInfo scope;
  void bind(Symbols& outer);
};

struct MacroStmt : Stmt {
  MacroBody macro;
  VariableRef ref;
  Flow exec(Context& cx) const override;
  void declare(Symbols& symbols) override { symbols.store(macro.name); }
  void bind(Symbols& symbols) override;
};

struct CallBlockStmt : Stmt {
  MacroBody macro;
  ExprPtr call;  // a CallExpr
  Flow exec(Context& cx) const override;
  void declare(Symbols& symbols) override { call->declare(symbols); }
  void bind(Symbols& symbols) override;
};

}  // namespace lk::jinja
