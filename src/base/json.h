// JSON as Python's json module writes it: NaN, Infinity and -Infinity are numbers. Stateless.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lk {

using Json = nlohmann::json;
// Keeps the file's key order (PEFT's rank_pattern is searched in it; templates print it).
using OrderedJson = nlohmann::ordered_json;

// `what` names the source in the error's sentence. Errors: kInvalid (syntax, nesting over 200,
// invalid UTF-8).
Result<Json> parse_json(std::string_view text, std::string_view what);
Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what);
Result<Json> read_json_file(const std::string& path);
Result<OrderedJson> read_ordered_json_file(const std::string& path);

// The text of a file that holds `value`, one field a line.
std::string json_file_text(OrderedJson value);

}  // namespace lk
