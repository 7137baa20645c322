#include <fmt/format.h>

#include "text/jinja/ast.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/print.h"

namespace lk::jinja {
namespace {

bool compare_order(Runtime& rt, CompareExpr::Op op, const Value& a, const Value& b) {
  using Op = CompareExpr::Op;
  const bool reals = a.is_number() && b.is_number() && !(a.is_integral() && b.is_integral());
  switch (op) {
    case Op::kLess:
      return less(rt, a, b, "<");
    case Op::kLessEqual:
      if (reals) return a.as_real() <= b.as_real();
      return less(rt, a, b, "<=") || equal(rt, a, b);
    case Op::kGreater:
    case Op::kGreaterEqual: {
      if (reals) return op == Op::kGreater ? a.as_real() > b.as_real() : a.as_real() >= b.as_real();
      const bool below = less(rt, a, b, op == Op::kGreater ? ">" : ">=");
      if (below) return false;
      return op == Op::kGreaterEqual || !equal(rt, a, b);
    }
    default:
      return false;
  }
}

bool compare(Runtime& rt, CompareExpr::Op op, const Value& a, const Value& b) {
  using Op = CompareExpr::Op;
  switch (op) {
    case Op::kEqual:
      return equal(rt, a, b);
    case Op::kNotEqual:
      return !equal(rt, a, b);
    case Op::kIn:
      return contains(rt, b, a);
    case Op::kNotIn:
      return !contains(rt, b, a);
    default:
      return compare_order(rt, op, a, b);
  }
}

}  // namespace

Value Expr::eval(Context& cx) const {
  cx.rt.charge(1);
  Runtime::Deeper deeper(cx.rt);
  cx.rt.line = line;
  return do_eval(cx);
}

void Expr::declare(Symbols& symbols) {
  each_child([&](Expr& child) { child.declare(symbols); });
}

void Expr::bind(Symbols& symbols) {
  each_child([&](Expr& child) { child.bind(symbols); });
}

Value NameExpr::do_eval(Context& cx) const {
  const Value& value = cx.variable(ref);
  return value.is_missing() ? Value::undefined(missing) : value;
}

void ListExpr::each_child(const std::function<void(Expr&)>& visit) {
  for (auto& item : items) visit(*item);
}

Value ListExpr::do_eval(Context& cx) const {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const auto& item : items) values.push_back(item->eval(cx));
  return tuple ? Value::tuple(std::move(values)) : Value::list(std::move(values));
}

void DictExpr::each_child(const std::function<void(Expr&)>& visit) {
  for (auto& [key, value] : entries) visit(*key), visit(*value);
}

Value DictExpr::do_eval(Context& cx) const {
  Dict dict;
  for (const auto& [key, value] : entries) {
    Value k = key->eval(cx);
    dict.set(std::move(k), value->eval(cx));
  }
  return Value::dict(std::move(dict));
}

Value UnaryExpr::do_eval(Context& cx) const {
  const Value value = operand->eval(cx);
  if (op == Op::kNot) return Value::boolean(!truthy(cx.rt, value));
  return op == Op::kNegate ? negate(value) : identity(value);
}

Value BinaryExpr::do_eval(Context& cx) const {
  const Value a = left->eval(cx);
  const Value b = right->eval(cx);
  return function(cx.rt, a, b);
}

Value LogicExpr::do_eval(Context& cx) const {
  Value a = left->eval(cx);
  return truthy(cx.rt, a) == is_and ? right->eval(cx) : a;
}

void ConcatExpr::each_child(const std::function<void(Expr&)>& visit) {
  for (auto& part : parts) visit(*part);
}

Value ConcatExpr::do_eval(Context& cx) const {
  std::string out;
  for (const auto& part : parts) append_str(cx.rt, part->eval(cx), &out);
  return Value::string(std::move(out));
}

void CompareExpr::each_child(const std::function<void(Expr&)>& visit) {
  visit(*first);
  for (auto& [op, operand] : rest) visit(*operand);
}

Value CompareExpr::do_eval(Context& cx) const {
  Value left = first->eval(cx);
  for (const auto& [op, operand] : rest) {
    Value right = operand->eval(cx);
    if (!compare(cx.rt, op, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

void ConditionalExpr::each_child(const std::function<void(Expr&)>& visit) {
  visit(*test), visit(*then);
  if (otherwise) visit(*otherwise);
}

Value ConditionalExpr::do_eval(Context& cx) const {
  if (truthy(cx.rt, test->eval(cx))) return then->eval(cx);
  if (otherwise) return otherwise->eval(cx);
  return Value::undefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.",
      line));
}

Value AttributeExpr::get(Context& cx, const Value& from) const {
  if (from.is_dict() && dict_method == nullptr) {
    if (const Value* found = from.dict().find(key.text())) return *found;
    return Value::undefined(missing_in_dict);
  }
  return get_attribute(cx.rt, from, name);
}

Value AttributeExpr::do_eval(Context& cx) const { return get(cx, object->eval(cx)); }

Value ItemExpr::do_eval(Context& cx) const {
  const Value from = object->eval(cx);
  const Value at = key->eval(cx);
  return get_item(cx.rt, from, at);
}

void SliceExpr::each_child(const std::function<void(Expr&)>& visit) {
  visit(*object);
  for (ExprPtr* bound : {&start, &stop, &step}) {
    if (*bound) visit(**bound);
  }
}

Value SliceExpr::do_eval(Context& cx) const {
  const Value from = object->eval(cx);
  const auto bound = [&](const ExprPtr& expr) { return expr ? expr->eval(cx) : Value::none(); };
  const Value a = bound(start), b = bound(stop), c = bound(step);
  return get_slice(cx.rt, from, a, b, c);
}

void ArgumentList::each_child(const std::function<void(Expr&)>& visit) {
  for (auto& value : positional) visit(*value);
  for (auto& [name, value] : named) visit(*value);
  if (star) visit(*star);
  if (star_star) visit(*star_star);
}

CallArgs ArgumentList::eval(Context& cx) const {
  CallArgs args;
  args.positional.reserve(positional.size());
  for (const auto& value : positional) args.positional.push_back(value->eval(cx));
  for (const auto& [name, value] : named) args.named.emplace_back(name, value->eval(cx));
  if (star) {
    for (Value& item : list_of(cx.rt, star->eval(cx))) args.positional.push_back(std::move(item));
  }
  if (star_star) {
    const Value more = star_star->eval(cx);
    if (!more.is_dict())
      raise_error("argument after ** must be a mapping, not " + more.type_name());
    cx.rt.charge(static_cast<int64_t>(more.dict().entries().size()));
    for (const auto& [key, value] : more.dict().entries()) {
      if (!key.is_string()) raise_error("keywords must be strings");
      args.named.emplace_back(key.text(), value);
    }
  }
  return args;
}

void CallExpr::each_child(const std::function<void(Expr&)>& visit) {
  visit(*callee);
  arguments.each_child(visit);
}

Value CallExpr::call(Context& cx, const Value* caller) const {
  Value function;
  // A method of plain data is called without making a value of it first.
  if (const auto* attribute = dynamic_cast<const AttributeExpr*>(callee.get())) {
    const Value self = attribute->object->eval(cx);
    const Method method = self.is_string() ? attribute->string_method
                          : self.is_dict() ? attribute->dict_method
                                           : nullptr;
    if (method != nullptr) {
      const CallArgs args = arguments.eval(cx);
      cx.rt.line = line;
      return method(cx.rt, self, args);
    }
    function = attribute->get(cx, self);
  } else {
    function = callee->eval(cx);
  }
  CallArgs args = arguments.eval(cx);
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  cx.rt.line = line;
  return call_value(cx.rt, function, args);
}

void FilterExpr::each_child(const std::function<void(Expr&)>& visit) {
  if (input) visit(*input);
  arguments.each_child(visit);
}

Value FilterExpr::apply(Context& cx, const Value& captured) const {
  Value value;
  if (!input) {
    value = captured;
  } else if (const auto* inner = dynamic_cast<const FilterExpr*>(input.get())) {
    value = inner->apply(cx, captured);
  } else {
    value = input->eval(cx);
  }
  const CallArgs args = arguments.eval(cx);
  cx.rt.charge(1);
  cx.rt.line = line;
  return filter(cx.rt, value, args);
}

Value FilterExpr::do_eval(Context& cx) const { return apply(cx, Value()); }

void TestExpr::each_child(const std::function<void(Expr&)>& visit) {
  visit(*input);
  arguments.each_child(visit);
}

Value TestExpr::do_eval(Context& cx) const {
  const Value value = input->eval(cx);
  const CallArgs args = arguments.eval(cx);
  cx.rt.line = line;
  return Value::boolean(test(cx.rt, value, args) != negated);
}

}  // namespace lk::jinja
