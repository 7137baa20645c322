// Typed reading of JSON fields: every refusal is a 400 that names the field. A field that is null
// is as good as absent. Stateless.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/api/api_error.h"

namespace lk {

// One value; `name` is its path in the request ("tools[0].type").
ApiResult<bool> read_boolean(const OrderedJson& value, const std::string& name);
ApiResult<int64_t> read_integer(const OrderedJson& value, const std::string& name, int64_t min,
                                int64_t max);  // 5.0 is no integer
ApiResult<double> read_number(const OrderedJson& value, const std::string& name);  // finite
ApiResult<std::string> read_string(const OrderedJson& value, const std::string& name);
// A list of integers in [0, below).
ApiResult<std::vector<int32_t>> read_ids(const OrderedJson& value, const std::string& name,
                                         int64_t below);

// What was found, for a sentence: "\"abc\"", "1.5", "a list". At most a few words.
std::string found_text(const OrderedJson& value);

class Fields {
 public:
  // `object` must be an object and outlive this; `path` stands before the names ("tools[0].").
  explicit Fields(const OrderedJson& object, std::string path = {})
      : object_(object), path_(std::move(path)) {}

  const OrderedJson* find(std::string_view key) const;  // null if absent or null
  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::string name(std::string_view key) const { return path_ + std::string(key); }

  ApiResult<bool> boolean_or(std::string_view key, bool fallback) const;
  ApiResult<int64_t> integer_or(std::string_view key, int64_t fallback, int64_t min,
                                int64_t max) const;
  ApiResult<std::string> string_or(std::string_view key, std::string fallback) const;

 private:
  const OrderedJson& object_;
  std::string path_;
};

}  // namespace lk
