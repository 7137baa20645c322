#include "text/jinja/tests.h"

#include "text/jinja/filters.h"
#include "text/jinja/objects.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/runtime.h"

namespace lk::jinja {
namespace {

void no_arguments(const CallArgs& args) { const Arguments a("test", args, {}); }

bool is_defined(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return !v.is_undefined();
}
bool is_undefined(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_undefined();
}
bool is_none(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_none();
}
bool is_boolean(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_bool();
}
bool is_true(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_bool() && v.as_bool();
}
bool is_false(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_bool() && !v.as_bool();
}
bool is_integer(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.kind() == Kind::kInt;
}
bool is_float(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.kind() == Kind::kFloat;
}
bool is_number(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_number();
}
bool is_string(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_string();
}
bool is_mapping(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_dict();
}
bool is_sequence(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  // What has a length and __getitem__: a dict counts, and so does an undefined value, whose
  // __getitem__ raises.
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is_dict() ||
         (v.kind() == Kind::kObject && v.object().is_sequence());
}
bool is_iterable_test(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return is_iterable(v);
}
bool is_callable(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  // Undefined has a __call__, which raises.
  return v.is_undefined() || (v.kind() == Kind::kObject && v.object().is_callable());
}
bool is_escaped(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_safe();
}
bool is_lower_text(Runtime& rt, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return text_is_cased(rt, to_str(rt, v), false);
}
bool is_upper_text(Runtime& rt, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return text_is_cased(rt, to_str(rt, v), true);
}
bool remainder_is(Runtime& rt, const Value& v, int64_t divisor, int64_t rest) {
  return equal(rt, modulo(rt, v, Value::integer(divisor)), Value::integer(rest));
}
bool is_odd(Runtime& rt, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return remainder_is(rt, v, 2, 1);
}
bool is_even(Runtime& rt, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return remainder_is(rt, v, 2, 0);
}
bool is_divisible(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("divisibleby", args, {"num"}, 1);
  return equal(rt, modulo(rt, v, a[0]), Value::integer(0));
}
bool is_same(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("sameas", args, {"other"}, 1);
  if (v.kind() != a[0].kind()) return false;
  if (v.address() != nullptr && !v.is_string()) return v.address() == a[0].address();
  return equal(rt, v, a[0]);
}
bool is_in(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("in", args, {"seq"}, 1);
  return contains(rt, a[0], v);
}
bool is_filter(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_string() && find_filter(v.text()) != nullptr;
}
bool is_test(Runtime&, const Value& v, const CallArgs& args) {
  no_arguments(args);
  return v.is_string() && find_test(v.text()) != nullptr;
}

const Value& other(const CallArgs& args) {
  const Arguments a("comparison", args, {"other"}, 1);
  return a[0];
}
bool is_equal(Runtime& rt, const Value& v, const CallArgs& args) {
  return equal(rt, v, other(args));
}
bool is_not_equal(Runtime& rt, const Value& v, const CallArgs& args) {
  return !equal(rt, v, other(args));
}
bool is_less(Runtime& rt, const Value& v, const CallArgs& args) {
  return less(rt, v, other(args), "<");
}
bool is_less_equal(Runtime& rt, const Value& v, const CallArgs& args) {
  return less(rt, v, other(args), "<=") || equal(rt, v, other(args));
}
bool is_greater(Runtime& rt, const Value& v, const CallArgs& args) {
  return !less(rt, v, other(args), ">") && less(rt, other(args), v, ">");
}
bool is_greater_equal(Runtime& rt, const Value& v, const CallArgs& args) {
  return is_greater(rt, v, args) || equal(rt, v, other(args));
}

struct TestRow {
  std::string_view name;
  Test test;
};

constexpr TestRow kTests[] = {
    {"defined", &is_defined},
    {"undefined", &is_undefined},
    {"none", &is_none},
    {"boolean", &is_boolean},
    {"true", &is_true},
    {"false", &is_false},
    {"integer", &is_integer},
    {"float", &is_float},
    {"number", &is_number},
    {"string", &is_string},
    {"mapping", &is_mapping},
    {"sequence", &is_sequence},
    {"iterable", &is_iterable_test},
    {"callable", &is_callable},
    {"escaped", &is_escaped},
    {"lower", &is_lower_text},
    {"upper", &is_upper_text},
    {"odd", &is_odd},
    {"even", &is_even},
    {"divisibleby", &is_divisible},
    {"sameas", &is_same},
    {"in", &is_in},
    {"filter", &is_filter},
    {"test", &is_test},
    {"==", &is_equal},
    {"eq", &is_equal},
    {"equalto", &is_equal},
    {"!=", &is_not_equal},
    {"ne", &is_not_equal},
    {"<", &is_less},
    {"lt", &is_less},
    {"lessthan", &is_less},
    {"<=", &is_less_equal},
    {"le", &is_less_equal},
    {">", &is_greater},
    {"gt", &is_greater},
    {"greaterthan", &is_greater},
    {">=", &is_greater_equal},
    {"ge", &is_greater_equal},
};

}  // namespace

Test find_test(std::string_view name) {
  for (const TestRow& row : kTests) {
    if (row.name == name) return row.test;
  }
  return nullptr;
}

}  // namespace lk::jinja
