// Python's two string formattings and strftime. Raises on what they refuse. Pure functions on a
// rendering's budget.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace lk::jinja {

// text % arguments: a tuple gives several, a dict gives %(name)s.
std::string format_percent(Runtime& rt, const Value& text, const Value& arguments);
// text.format(*args, **kwargs), with attributes and items in field names looked up as templates do.
std::string format_braces(Runtime& rt, const Value& text, const CallArgs& args);
// format(value, spec): [[fill]align][sign][#][0][width][,|_][.precision][type]
std::string format_value(Runtime& rt, const Value& value, std::string_view spec);

std::string format_time(Runtime& rt, const std::tm& time, const std::string& format);

}  // namespace lk::jinja
