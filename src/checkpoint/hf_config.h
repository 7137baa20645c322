// config.json, generation_config.json and hf_quant_config.json of a model folder. Copyable;
// read-only use is thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace lk {

// Typed access to one JSON object; every error names the file, the field, and what was expected.
class JsonFields {
 public:
  JsonFields(const Json& object, std::string what);

  bool has(std::string_view key) const;  // present and not null
  Result<int64_t> integer(std::string_view key, int64_t min, int64_t max) const;
  Result<int64_t> integer_or(std::string_view key, int64_t fallback, int64_t min,
                             int64_t max) const;
  Result<double> number(std::string_view key) const;  // finite
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> string(std::string_view key) const;
  Result<std::string> string_or(std::string_view key, std::string fallback) const;
  Result<std::vector<std::string>> strings(std::string_view key) const;
  Result<JsonFields> object(std::string_view key) const;

  const Json& json() const { return *object_; }
  const std::string& what() const { return what_; }

 private:
  const Json* object_;
  std::string what_;
};

struct HfConfig {
  std::shared_ptr<const Json> config;             // never null
  std::shared_ptr<const Json> generation_config;  // null if the file is absent
  std::shared_ptr<const Json> hf_quant_config;    // null if the file is absent

  // Reads the files of a folder; config.json must be there and be an object with model_type.
  static Result<HfConfig> read(const std::string& folder);

  JsonFields fields() const { return JsonFields(*config, "config.json"); }
  std::string model_type() const;
  // End-of-turn ids: generation_config's eos_token_id (number or list) and config.json's, its
  // own and that of the text part of a model that also sees; each once.
  Result<std::vector<int32_t>> eos_token_ids() const;
};

}  // namespace lk
