// The tests (value is name) in one table. Pure functions on a rendering's budget.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace lk::jinja {

using Test = bool (*)(Runtime& rt, const Value& input, const CallArgs& args);

// Null if there is none.
Test find_test(std::string_view name);

}  // namespace lk::jinja
