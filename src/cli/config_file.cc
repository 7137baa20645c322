#include "cli/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json.h"

namespace lk {
namespace {

constexpr size_t kLongestConfig = 1 << 20;
constexpr int kDeepest = 20;

OrderedJson to_json(const YAML::Node& node, int depth) {
  if (depth > kDeepest) throw YAML::Exception(node.Mark(), "settings are nested too deep");
  if (node.IsNull()) return nullptr;
  if (node.IsSequence()) {
    OrderedJson list = OrderedJson::array();
    for (const YAML::Node& item : node) list.push_back(to_json(item, depth + 1));
    return list;
  }
  if (node.IsMap()) {
    OrderedJson object = OrderedJson::object();
    for (const auto& entry : node) {
      object[entry.first.as<std::string>()] = to_json(entry.second, depth + 1);
    }
    return object;
  }
  const std::string text = node.as<std::string>();
  if (node.Tag() == "!") return text;  // quoted
  const OrderedJson value = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_number() || value.is_boolean() ? value : OrderedJson(text);
}

std::string value_text(const YAML::Node& node) {
  return node.IsScalar() ? node.as<std::string>() : to_json(node, 0).dump();
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

void add_setting(std::vector<std::string>& args, std::string name, const YAML::Node& value) {
  std::replace(name.begin(), name.end(), '_', '-');
  if (value.IsNull()) return;
  const std::string word = value.IsScalar() ? lower(value.as<std::string>()) : "";
  if (word == "true") {
    args.push_back("--" + name);
  } else if (word == "false") {
    // A flag that is off by itself needs no word to stay off.
    if (name.starts_with("enable-")) args.push_back("--no-" + name);
  } else if (value.IsSequence()) {
    for (const YAML::Node& item : value) {
      args.push_back("--" + name);
      args.push_back(value_text(item));
    }
  } else {
    args.push_back("--" + name);
    args.push_back(value_text(value));
  }
}

}  // namespace

Result<std::vector<std::string>> parse_config(const std::string& text, const std::string& path) {
  std::vector<std::string> args;
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return args;
    if (!root.IsMap()) return invalid("{}: the file must hold 'flag: value' lines", path);
    for (const auto& entry : root) {
      add_setting(args, entry.first.as<std::string>(), entry.second);
    }
  } catch (const YAML::Exception& error) {
    return invalid("{}: line {}: {}", path, error.mark.line + 1, error.msg);
  }
  return args;
}

Result<std::vector<std::string>> read_config_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorKind::kNotFound, "cannot open the settings file {}", path);
  std::string text(kLongestConfig + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kLongestConfig)
    return invalid("{}: the settings file is longer than {} bytes", path, kLongestConfig);
  return parse_config(text, path);
}

}  // namespace lk
