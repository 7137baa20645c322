#include "server/path_policy.h"

#include <algorithm>
#include <filesystem>

#include "hub/repo_id.h"

namespace lk {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestPath = 4095;
constexpr const char* kFiles[] = {"adapter_config.json", "adapter_model.safetensors"};

// The path with its links followed, as far as it exists; empty if that cannot be told.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) return {};
  return real.has_filename() ? real : real.parent_path();
}

bool below(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

bool below_any(const fs::path& path, const std::vector<fs::path>& roots) {
  return !path.empty() && std::any_of(roots.begin(), roots.end(),
                                      [&](const fs::path& root) { return below(path, root); });
}

tl::unexpected<ApiError> refuse(int status, std::string message) {
  return tl::unexpected<ApiError>(
      ApiError{.status = status,
               .message = std::move(message),
               .type = status == 403 ? "permission_error" : "invalid_request_error",
               .param = "lora_path"});
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] == text[t] && pattern[p] != '*'))) {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

ApiResult<AllowedPath> check_adapter_path(const PathPolicy& policy, const std::string& path) {
  if (path.empty()) return refuse(400, "lora_path is empty");
  if (path.size() > kLongestPath) {
    return refuse(400, fmt::format("lora_path is longer than {} bytes", kLongestPath));
  }
  if (path.find('\0') != std::string::npos) return refuse(400, "lora_path contains a NUL byte");
  if (path.find("://") != std::string::npos) {
    return refuse(400, "lora_path is a URL: give a folder, or a hub id");
  }
  std::vector<fs::path> roots;
  for (const std::string& root : policy.roots) {
    if (fs::path real = real_path(root); !root.empty() && !real.empty()) {
      roots.push_back(std::move(real));
    }
  }
  const fs::path real = real_path(path);
  if (!below_any(real, roots)) {
    const std::string id = path.substr(0, path.find('@'));
    if (is_repo_id(id) &&
        std::any_of(policy.hub_patterns.begin(), policy.hub_patterns.end(),
                    [&](const std::string& pattern) { return glob_match(pattern, id); })) {
      return AllowedPath{.hub_id = path};
    }
    return refuse(403,
                  "lora_path must be a folder in --lora-dir, a --lora-root or the hub's cache, or "
                  "a hub id that --lora-hub-allow matches");
  }
  std::error_code error;
  if (!fs::exists(real, error)) return refuse(404, "No adapter found for " + path);
  if (!fs::is_directory(real, error)) return refuse(400, "lora_path is no folder");
  for (const char* name : kFiles) {
    const fs::path file = real / name;
    if (!fs::exists(fs::symlink_status(file, error))) continue;  // the loader says what is missing
    const fs::path target = real_path(file);
    if (!below_any(target, roots)) {
      return refuse(403, fmt::format("{} in lora_path leads out of the allowed folders", name));
    }
    if (fs::exists(target, error) && !fs::is_regular_file(target, error)) {
      return refuse(400, fmt::format("{} in lora_path is no regular file", name));
    }
  }
  return AllowedPath{.folder = real.string()};
}

}  // namespace lk
