// Values that a template or a model wrote as Python does: {'a': True}. Stateless.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lk {

// JSON text of a Python literal of dicts with strings as keys, lists, strings, numbers, True, False
// and None (and of JSON's words among them). None if `text` is no such literal, whole.
std::optional<std::string> python_literal_to_json(std::string_view text);

}  // namespace lk
