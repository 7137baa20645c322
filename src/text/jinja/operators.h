// Python's arithmetic on values. Raises TypeError's sentences. Pure functions on a rendering's
// budget.
#pragma once

#include "text/jinja/value.h"

namespace lk::jinja {

using BinaryFunction = Value (*)(Runtime& rt, const Value& a, const Value& b);

Value add(Runtime& rt, const Value& a, const Value& b);
Value subtract(Runtime& rt, const Value& a, const Value& b);
Value multiply(Runtime& rt, const Value& a, const Value& b);
Value divide(Runtime& rt, const Value& a, const Value& b);
Value floor_divide(Runtime& rt, const Value& a, const Value& b);
Value modulo(Runtime& rt, const Value& a, const Value& b);  // a string on the left is formatted
Value power(Runtime& rt, const Value& a, const Value& b);
Value negate(const Value& a);
Value identity(const Value& a);  // unary plus

// HTML: & < > ' " become entities; safe text is left alone.
std::string escape_html(Runtime& rt, const Value& value);

}  // namespace lk::jinja
