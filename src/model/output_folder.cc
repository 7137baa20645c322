#include "model/output_folder.h"

#include <algorithm>
#include <filesystem>

namespace lk {
namespace {

namespace fs = std::filesystem;

// Configs are written last: a folder with one is whole.
constexpr const char* kConfigs[] = {"config.json", "adapter_config.json"};

bool holds(const fs::path& folder, const char* name) {
  std::error_code ignored;
  return fs::exists(folder / name, ignored);
}

// What a killed command leaves: weights or a half-written file, and no config.
bool holds_part(const fs::path& folder) {
  if (std::any_of(std::begin(kConfigs), std::end(kConfigs),
                  [&](const char* name) { return holds(folder, name); })) {
    return false;
  }
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string extension = entry.path().extension();
    if (extension == ".safetensors" || extension == ".partial") return true;
  }
  return false;
}

Status not_empty(const std::string& path) {
  std::error_code ignored;
  bool part = holds_part(path);
  // A checkpoint's adapters lie in folders of their own.
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored)) {
    part = part || (entry.is_directory(ignored) && holds_part(entry.path()));
  }
  if (part) {
    return invalid("{} holds part of a checkpoint, left by a run that did not end: remove it first",
                   path);
  }
  if (holds(path, "adapter_config.json")) {
    return invalid("{} holds an adapter already; give a new folder to write to", path);
  }
  if (holds(path, "config.json")) {
    return invalid("{} holds a model already; give a new folder to write to", path);
  }
  return invalid("{} is not empty; give a new folder to write to", path);
}

}  // namespace

Result<OutputFolder> OutputFolder::make(const std::string& path,
                                        const std::vector<std::string>& sources) {
  std::error_code error;
  for (const std::string& source : sources) {
    if (fs::equivalent(source, path, error)) {
      return invalid("{} is the folder that is read; give another to write to", path);
    }
  }
  OutputFolder folder;
  folder.path_ = path;
  folder.kept_ = false;  // from here on: some of the folders may be made before one cannot be
  for (fs::path at = fs::absolute(path, error).lexically_normal(); !fs::exists(at, error);
       at = at.parent_path()) {
    if (at.has_filename()) folder.made_.push_back(at);
  }
  fs::create_directories(path, error);
  if (error) {
    return fail(ErrorKind::kResource, "cannot make the folder {}: {}", path, error.message());
  }
  const bool empty = fs::is_empty(path, error);
  if (error) return fail(ErrorKind::kResource, "cannot look into {}: {}", path, error.message());
  if (!empty) LK_RETURN_IF_ERROR(not_empty(path));
  folder.filled_ = true;
  return folder;
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : path_(std::move(other.path_)),
      made_(std::move(other.made_)),
      filled_(other.filled_),
      kept_(other.kept_) {
  other.kept_ = true;
}

OutputFolder::~OutputFolder() {
  if (kept_) return;
  std::error_code ignored;
  if (filled_) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path_, ignored)) {
      fs::remove_all(entry.path(), ignored);
    }
  }
  for (const std::string& made : made_) fs::remove(made, ignored);
}

Status check_outside(const std::string& path, const std::string& source) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(fs::absolute(path, error), error).lexically_normal();
  for (fs::path at = inner; at.has_relative_path(); at = at.parent_path()) {
    std::error_code absent;
    if (at != inner && fs::equivalent(at, source, absent)) {
      return invalid("{} lies inside {}, the folder that is read; give one beside it", path,
                     source);
    }
  }
  return {};
}

}  // namespace lk
