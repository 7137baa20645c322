#include "adapters/extra_tokens.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json.h"
#include "base/mmap_file.h"

namespace lk {
namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;

// These files are not the adapter's own: one that is absent or unreadable says nothing.
std::optional<Json> read_object(const std::string& path) {
  const Result<std::string> text = read_file(path, kMaxBytes);
  if (!text) return std::nullopt;
  Result<Json> json = parse_json(*text, path);
  if (!json || !json->is_object()) return std::nullopt;
  return std::move(*json);
}

Status check(std::string_view file, const std::string& token, int64_t id, int64_t vocabulary) {
  if (id < vocabulary) return {};
  return unsupported(
      "{} adds the token '{}' with id {}, but the base model's vocabulary has {} rows", file, token,
      id, vocabulary);
}

}  // namespace

Status check_extra_tokens(const std::string& folder, const LinearTable& table) {
  const LinearSpec* embedding = table.find(Stage::kEmbedding, -1);
  if (!embedding) return {};
  if (const auto added = read_object(folder + "/added_tokens.json")) {
    for (const auto& [token, id] : added->items()) {
      if (id.is_number_integer()) {
        LK_RETURN_IF_ERROR(check("added_tokens.json", token, id.get<int64_t>(), embedding->out));
      }
    }
  }
  const auto config = read_object(folder + "/tokenizer_config.json");
  if (!config || !config->contains("added_tokens_decoder")) return {};
  const Json& decoder = (*config)["added_tokens_decoder"];
  if (!decoder.is_object()) return {};
  for (const auto& [key, token] : decoder.items()) {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) continue;
    const bool named =
        token.is_object() && token.contains("content") && token["content"].is_string();
    LK_RETURN_IF_ERROR(check("tokenizer_config.json",
                             named ? token["content"].get<std::string>() : key, id,
                             embedding->out));
  }
  return {};
}

}  // namespace lk
