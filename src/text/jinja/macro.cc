// Macros, call blocks and loops: the constructs whose values carry template code.
#include <fmt/format.h>

#include "text/jinja/ast.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/print.h"

namespace lk::jinja {
namespace {

// A macro with the scope it was defined in. The context outlives it: no value leaves a rendering.
class Macro : public Object {
 public:
  Macro(Context& cx, const MacroBody& body) : cx_(cx), body_(body), scope_(cx.scope) {
    for (Scope* at = scope_; at != nullptr && !at->captured; at = at->parent) at->captured = true;
  }
  std::string type_name() const override { return "Macro"; }
  std::string repr(Runtime&) const override {
    return body_.name.empty() ? "<Macro anonymous>"
                              : fmt::format("<Macro {}>", string_repr(body_.name));
  }
  bool is_callable() const override { return true; }

  bool get_attribute(Runtime&, std::string_view name, Value* out) override {
    if (name == "name") {
      *out = body_.name.empty() ? Value::none() : Value::string(body_.name);
    } else if (name == "arguments") {
      std::vector<Value> names;
      for (const auto& parameter : body_.parameters) names.push_back(Value::string(parameter.name));
      *out = Value::tuple(std::move(names));
    } else if (name == "caller" || name == "catch_kwargs" || name == "catch_varargs") {
      *out = Value::boolean(name == "caller"         ? body_.uses_caller
                            : name == "catch_kwargs" ? body_.kwargs_slot >= 0
                                                     : body_.varargs_slot >= 0);
    } else {
      return false;
    }
    return true;
  }

  Value call(Runtime& rt, const CallArgs& args) override {
    ScopeGuard scope(cx_, body_.scope, scope_);
    bind_arguments(rt, scope.scope(), args);
    std::string text;
    {
      Capture capture(cx_, &text);
      body_.body.exec(cx_);
    }
    return Value::string(std::move(text));
  }

 private:
  void bind_arguments(Runtime& rt, Scope& scope, const CallArgs& args) {
    const auto slot = [&](int i) -> Value& { return scope.slots[static_cast<size_t>(i)]; };
    const size_t count = body_.parameters.size();
    const size_t positional = std::min(args.positional.size(), count);
    for (size_t i = 0; i < positional; ++i) slot(body_.parameters[i].slot) = args.positional[i];

    Dict rest;
    const Value* caller = nullptr;
    for (const auto& [name, value] : args.named) {
      size_t i = positional;
      while (i < count && body_.parameters[i].name != name) ++i;
      if (i < count) {
        slot(body_.parameters[i].slot) = value;
      } else if (name == "caller" && body_.caller_slot >= 0) {
        caller = &value;
      } else if (body_.kwargs_slot >= 0) {
        rest.set(Value::string(name), value);
      } else if (name == "caller") {
        raise_error(fmt::format(
            "macro {} was invoked with two values for the special caller argument. This is "
            "most likely a bug.",
            string_repr(body_.name)));
      } else {
        raise_error(
            fmt::format("macro {} takes no keyword argument {}", name_repr(), string_repr(name)));
      }
    }
    if (body_.caller_slot >= 0) {
      slot(body_.caller_slot) = caller != nullptr ? *caller : Value::undefined("No caller defined");
    }
    if (body_.kwargs_slot >= 0) slot(body_.kwargs_slot) = Value::dict(std::move(rest));
    if (body_.varargs_slot >= 0) {
      slot(body_.varargs_slot) =
          Value::tuple({args.positional.begin() + static_cast<std::ptrdiff_t>(positional),
                        args.positional.end()});
    } else if (args.positional.size() > count) {
      raise_error(fmt::format("macro {} takes not more than {} argument(s)", name_repr(), count));
    }
    for (const auto& parameter : body_.parameters) {
      if (!slot(parameter.slot).is_missing()) continue;
      slot(parameter.slot) = parameter.fallback
                                 ? parameter.fallback->eval(cx_)
                                 : Value::undefined(fmt::format("parameter {} was not provided",
                                                                string_repr(parameter.name)));
    }
    rt.charge(static_cast<int64_t>(count));
  }

  std::string name_repr() const { return body_.name.empty() ? "None" : string_repr(body_.name); }

  Context& cx_;
  const MacroBody& body_;
  Scope* scope_;
};

// The variable `loop`.
class Loop : public Object {
 public:
  Loop(Context& cx, const ForStmt& node, Scope* scope, const Value& over, int depth0)
      : cx_(cx), node_(node), scope_(scope), iterator_(iterate(cx.rt, over)), depth0_(depth0) {
    if (!node.filter) {
      const bool sized = over.kind() != Kind::kObject || over.object().has_length();
      if (sized) length_ = length_of(cx.rt, over);
    }
  }
  std::string type_name() const override { return "LoopContext"; }
  std::string repr(Runtime&) const override { return "<LoopContext>"; }
  bool is_callable() const override { return true; }

  // Moves to the next item; false at the end.
  bool advance(Value* item) {
    if (!peek()) return false;
    previous_ = std::move(current_);
    current_ = *item = std::move(next_);
    has_next_ = false;
    ++index0_;
    return true;
  }

  // A loop may hold itself through `changed`.
  void close() {
    closed_ = true;  // its scope is gone
    previous_ = current_ = next_ = Value();
    last_changed_.clear();
  }

  Value call(Runtime& rt, const CallArgs& args) override {
    check_open();
    const Arguments a("loop", args, {"iterable"}, 1);
    if (!node_.recursive) {
      raise_error("The loop must have the 'recursive' marker to be called recursively.");
    }
    std::string text;
    Scope* const from = cx_.scope;
    {
      Capture capture(cx_, &text);
      cx_.scope = scope_;
      node_.run(cx_, a[0], depth0_ + 1);
    }
    cx_.scope = from;
    rt.check_string(text.size());
    return Value::string(std::move(text));
  }

  bool get_attribute(Runtime& rt, std::string_view name, Value* out) override {
    check_open();
    if (name == "index") {
      *out = Value::integer(index0_ + 1);
    } else if (name == "index0") {
      *out = Value::integer(index0_);
    } else if (name == "first") {
      *out = Value::boolean(index0_ == 0);
    } else if (name == "last") {
      *out = Value::boolean(!peek());
    } else if (name == "length") {
      *out = Value::integer(length(rt));
    } else if (name == "revindex") {
      *out = Value::integer(length(rt) - index0_);
    } else if (name == "revindex0") {
      *out = Value::integer(length(rt) - index0_ - 1);
    } else if (name == "depth" || name == "depth0") {
      *out = Value::integer(name == "depth" ? depth0_ + 1 : depth0_);
    } else if (name == "previtem") {
      *out = index0_ == 0 ? Value::undefined("there is no previous item") : previous_;
    } else if (name == "nextitem") {
      *out = peek() ? next_ : Value::undefined("there is no next item");
    } else if (name == "cycle") {
      *out = Value::object(std::make_shared<Part>(*this, &Loop::cycle));
    } else if (name == "changed") {
      *out = Value::object(std::make_shared<Part>(*this, &Loop::changed));
    } else {
      return false;
    }
    return true;
  }

 private:
  using Member = Value (Loop::*)(Runtime&, const CallArgs&);

  class Part : public Object {
   public:
    Part(Loop& loop, Member member) : keep_(loop.self_.lock()), loop_(loop), member_(member) {}
    std::string type_name() const override { return "method"; }
    bool is_callable() const override { return true; }
    Value call(Runtime& rt, const CallArgs& args) override { return (loop_.*member_)(rt, args); }

   private:
    std::shared_ptr<Loop> keep_;
    Loop& loop_;
    Member member_;
  };

  void check_open() const {
    if (closed_) raise_error("a loop was used after its end");
  }

  Value cycle(Runtime&, const CallArgs& args) {
    check_open();
    if (args.positional.empty()) raise_error("no items for cycling given");
    return args.positional[static_cast<size_t>(index0_) % args.positional.size()];
  }

  Value changed(Runtime& rt, const CallArgs& args) {
    check_open();
    bool same = was_called_ && last_changed_.size() == args.positional.size();
    for (size_t i = 0; same && i < last_changed_.size(); ++i) {
      same = equal(rt, last_changed_[i], args.positional[i]);
    }
    was_called_ = true;
    if (!same) last_changed_ = args.positional;
    return Value::boolean(!same);
  }

  bool passes(const Value& item) {
    ScopeGuard scope(cx_, node_.filter_scope, scope_);
    node_.filter_target.assign(cx_, item);
    return jinja::truthy(cx_.rt, node_.filter->eval(cx_));
  }

  // Looks one item ahead, as Python's generators are asked.
  bool peek() {
    while (!has_next_) {
      cx_.rt.charge(1);
      if (!iterator_->next(&next_)) return false;
      has_next_ = counted_ || !node_.filter || passes(next_);
    }
    return true;
  }

  int64_t length(Runtime&) {
    if (length_ < 0) {
      std::vector<Value> rest;
      if (has_next_) rest.push_back(next_);
      has_next_ = false;
      while (peek()) {
        rest.push_back(std::move(next_));
        has_next_ = false;
      }
      length_ = index0_ + 1 + static_cast<int64_t>(rest.size());
      iterator_ = std::make_shared<Generator>(std::move(rest));
      counted_ = true;
    }
    return length_;
  }

 public:
  std::weak_ptr<Loop> self_;

 private:
  Context& cx_;
  const ForStmt& node_;
  Scope* scope_;  // where the loop stands
  std::shared_ptr<Generator> iterator_;
  int depth0_;
  int64_t index0_ = -1;
  int64_t length_ = -1;
  bool closed_ = false;
  bool counted_ = false;  // the items left have passed the filter already
  bool has_next_ = false;
  Value previous_, current_, next_;
  bool was_called_ = false;
  std::vector<Value> last_changed_;
};

struct LoopEnd {
  Loop& loop;
  ~LoopEnd() { loop.close(); }
};

}  // namespace

Flow ForStmt::exec(Context& cx) const {
  Runtime::Deeper deeper(cx.rt);
  const Value over = items->eval(cx);
  if (!recursive) return run(cx, over, 0);
  std::string text;
  {
    Capture capture(cx, &text);
    run(cx, over, 0);
  }
  cx.write(text);
  return Flow::kNext;
}

Flow ForStmt::run(Context& cx, const Value& over, int depth0) const {
  Scope* const outer = cx.scope;
  const auto loop = std::make_shared<Loop>(cx, *this, outer, over, depth0);
  loop->self_ = loop;
  const LoopEnd end{*loop};
  const Value loop_value = uses_loop ? Value::object(loop) : Value();
  bool any = false;
  {
    ScopeGuard scope(cx, body_scope, outer);
    Value item;
    while (true) {
      cx.scope = outer;
      const bool more = loop->advance(&item);
      cx.scope = &scope.scope();
      if (!more) break;
      if (any) scope.start();
      any = true;
      if (loop_slot >= 0) scope.scope().slots[static_cast<size_t>(loop_slot)] = loop_value;
      target.assign(cx, std::move(item));
      if (body.exec(cx) == Flow::kBreak) break;
    }
  }
  if (any) return Flow::kNext;
  ScopeGuard scope(cx, otherwise_scope, outer);
  return otherwise.exec(cx);
}

Flow MacroStmt::exec(Context& cx) const {
  cx.variable(ref) = Value::object(std::make_shared<Macro>(cx, macro));
  return Flow::kNext;
}

Flow CallBlockStmt::exec(Context& cx) const {
  Runtime::Deeper deeper(cx.rt);
  const Value caller = Value::object(std::make_shared<Macro>(cx, macro));
  cx.write(to_str(cx.rt, static_cast<const CallExpr&>(*call).call(cx, &caller)));
  return Flow::kNext;
}

}  // namespace lk::jinja
