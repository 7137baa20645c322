// The functions every template may call: range, dict, namespace, cycler, joiner, raise_exception,
// strftime_now. Constant; shared by all renderings.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace lk::jinja {

// Null if there is none.
const Value* find_global(std::string_view name);

}  // namespace lk::jinja
