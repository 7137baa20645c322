#include "hub/needed_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "hub/repo_id.h"

namespace lk {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kAdapterWeights = "adapter_model.safetensors";
constexpr const char* kTokenizerFile = "tokenizer.json";
constexpr const char* kToolTemplate = "additional_chat_templates/tool_use.jinja";

bool in(const std::vector<std::string>& files, const std::string& name) {
  return std::find(files.begin(), files.end(), name) != files.end();
}

// Beside the fixed names: tokenizer*.json and chat_template*.
bool is_small_model_file(const std::string& name) {
  if (in(optional_files(RepoKind::kModel), name)) return true;
  if (name.find('/') != name.npos) return false;
  return (name.starts_with("tokenizer") && name.ends_with(".json")) ||
         (name.starts_with("chat_template") &&
          (name.ends_with(".jinja") || name.ends_with(".json")));
}

bool is_foreign_weight_file(const std::string& name) {
  return name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth") ||
         name.ends_with(".ckpt") || name.ends_with(".gguf") || name.ends_with(".safetensors");
}

std::string no_weights(const std::vector<std::string>& files, const std::string& expected,
                       const std::string& repo) {
  const auto other = std::find_if(files.begin(), files.end(), is_foreign_weight_file);
  if (other == files.end()) return fmt::format("{} has no {}", repo, expected);
  return fmt::format("{} has no {}; other weight files ({}) are not read", repo, expected, *other);
}

Result<std::vector<std::string>> needed_model_files(const std::vector<std::string>& files,
                                                    const std::string& repo) {
  if (!in(files, "config.json")) {
    if (in(files, "adapter_config.json"))
      return fail(ErrorKind::kInvalid, "{} is an adapter, not a model: it has no config.json",
                  repo);
    return fail(ErrorKind::kNotFound, "{} has no config.json", repo);
  }
  std::vector<std::string> out = {"config.json"};
  for (const std::string& file : files) {
    if (is_small_model_file(file)) out.push_back(file);
  }
  if (in(files, kSingleFile)) {
    out.push_back(kSingleFile);
  } else if (in(files, kWeightIndex)) {
    out.push_back(kWeightIndex);
  } else {
    return fail(ErrorKind::kUnsupported, "{}",
                no_weights(files, "model.safetensors (nor its index)", repo));
  }
  return out;
}

Result<std::vector<std::string>> needed_adapter_files(const std::vector<std::string>& files,
                                                      const std::string& repo) {
  if (!in(files, "adapter_config.json")) {
    if (in(files, "config.json"))
      return fail(ErrorKind::kInvalid,
                  "{} is a model, not an adapter: it has no adapter_config.json", repo);
    return fail(ErrorKind::kNotFound, "{} has no adapter_config.json", repo);
  }
  std::vector<std::string> out = {"adapter_config.json"};
  for (const std::string& file : optional_files(RepoKind::kAdapter)) {
    if (in(files, file)) out.push_back(file);
  }
  if (!in(files, kAdapterWeights))
    return fail(ErrorKind::kUnsupported, "{}", no_weights(files, kAdapterWeights, repo));
  out.push_back(kAdapterWeights);
  return out;
}

Result<std::vector<std::string>> needed_tokenizer_files(const std::vector<std::string>& files,
                                                        const std::string& repo) {
  if (!in(files, kTokenizerFile))
    return fail(ErrorKind::kNotFound, "{} has no {}", repo, kTokenizerFile);
  std::vector<std::string> out = {kTokenizerFile};
  for (const std::string& file : optional_files(RepoKind::kTokenizer)) {
    if (in(files, file)) out.push_back(file);
  }
  return out;
}

// The first file without which the snapshot cannot be loaded, or "".
std::string first_missing(const HubCache& cache, const std::string& commit, RepoKind kind) {
  const auto missing = [&](const std::string& file) { return !cache.has_file(commit, file); };
  if (missing(main_file(kind))) return main_file(kind);
  if (kind == RepoKind::kTokenizer) return "";
  if (kind == RepoKind::kAdapter) return missing(kAdapterWeights) ? kAdapterWeights : "";
  if (!missing(kSingleFile)) return "";
  if (missing(kWeightIndex)) return kSingleFile;
  const auto shards = index_shards(cache.snapshot(commit) + "/" + kWeightIndex);
  if (!shards) return kWeightIndex;
  for (const std::string& shard : *shards) {
    if (missing(shard)) return shard;
  }
  return "";
}

}  // namespace

const char* kind_name(RepoKind kind) {
  constexpr const char* kNames[] = {"model", "adapter", "tokenizer"};
  return kNames[static_cast<size_t>(kind)];
}

const char* main_file(RepoKind kind) {
  constexpr const char* kFiles[] = {"config.json", "adapter_config.json", kTokenizerFile};
  return kFiles[static_cast<size_t>(kind)];
}

const std::vector<std::string>& optional_files(RepoKind kind) {
  static const std::vector<std::string> files[] = {
      {"generation_config.json", kTokenizerFile, "tokenizer_config.json", "chat_template.jinja",
       "hf_quant_config.json", kToolTemplate},
      {"added_tokens.json", "tokenizer_config.json"},
      {"tokenizer_config.json", "chat_template.jinja"}};
  return files[static_cast<size_t>(kind)];
}

Result<std::vector<std::string>> needed_files(RepoKind kind, const std::vector<std::string>& files,
                                              const std::string& repo) {
  switch (kind) {
    case RepoKind::kModel:
      return needed_model_files(files, repo);
    case RepoKind::kAdapter:
      return needed_adapter_files(files, repo);
    case RepoKind::kTokenizer:
      break;
  }
  return needed_tokenizer_files(files, repo);
}

Result<std::vector<std::string>> index_shards(const std::string& path) {
  LK_ASSIGN_OR_RETURN(const Json index, read_json_file(path));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty())
    return invalid("{} has no weight_map", path);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    const auto* name = shard.get_ptr<const std::string*>();
    if (name == nullptr || !is_safe_file_name(*name) || name->find('/') != name->npos ||
        !name->ends_with(".safetensors"))
      return invalid("{} places tensor {} in {}, which is no safetensors file beside it", path,
                     tensor, shard.dump(-1, ' ', false, Json::error_handler_t::replace));
    shards.insert(*name);
  }
  return std::vector<std::string>(shards.begin(), shards.end());
}

SnapshotState check_snapshot(const HubCache& cache, const std::string& commit, RepoKind kind) {
  SnapshotState state;
  state.missing = first_missing(cache, commit, kind);
  const auto& files = optional_files(kind);
  state.complete = state.missing.empty() &&
                   std::all_of(files.begin(), files.end(), [&](const std::string& file) {
                     return cache.has_file(commit, file) || cache.known_absent(commit, file);
                   });
  return state;
}

}  // namespace lk
