#include "cli/options.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/hf_config.h"

namespace lk {
namespace {

std::string last_folder(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

Result<LoraFlag> parse_lora_module(const std::string& value) {
  if (!value.starts_with('{')) {
    const size_t equals = value.find('=');
    if (equals == std::string::npos) {
      return invalid("--lora-modules takes NAME=PATH or a JSON object, not '{}'", value);
    }
    return LoraFlag{value.substr(0, equals), value.substr(equals + 1)};
  }
  const std::string what = "--lora-modules " + value;
  LK_ASSIGN_OR_RETURN(const Json json, parse_json(value, what));
  const JsonFields fields(json, what);
  LoraFlag flag;
  LK_ASSIGN_OR_RETURN(flag.name, fields.string("name"));
  LK_ASSIGN_OR_RETURN(flag.path, fields.string("path"));
  return flag;
}

}  // namespace

Result<std::vector<LoraFlag>> parse_lora_modules(const std::vector<std::string>& values) {
  std::vector<LoraFlag> flags;
  for (const std::string& value : values) {
    LK_ASSIGN_OR_RETURN(LoraFlag flag, parse_lora_module(value));
    if (flag.name.empty() || flag.path.empty())
      return invalid("--lora-modules takes NAME=PATH or a JSON object, not '{}'", value);
    if (std::any_of(flags.begin(), flags.end(),
                    [&](const LoraFlag& other) { return other.name == flag.name; })) {
      return invalid("--lora-modules names two adapters '{}', give each its own name", flag.name);
    }
    flags.push_back(std::move(flag));
  }
  return flags;
}

Result<std::vector<LoraFlag>> parse_lora_flags(const std::vector<std::string>& values) {
  std::vector<LoraFlag> flags;
  for (const std::string& value : values) {
    const size_t equals = value.find('=');
    LoraFlag flag = equals == std::string::npos
                        ? LoraFlag{last_folder(value), value}
                        : LoraFlag{value.substr(0, equals), value.substr(equals + 1)};
    if (flag.name.empty() || flag.path.empty())
      return invalid("--lora takes NAME=PATH, not '{}'", value);
    if (flag.name == "base")
      return invalid("--lora {}: the name 'base' stands for no adapter, choose another", value);
    if (std::any_of(flags.begin(), flags.end(),
                    [&](const LoraFlag& other) { return other.name == flag.name; })) {
      return invalid("--lora names two adapters '{}', give each its own name", flag.name);
    }
    flags.push_back(std::move(flag));
  }
  return flags;
}

}  // namespace lk
