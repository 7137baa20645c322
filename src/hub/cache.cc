#include "hub/cache.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>

#include "hub/repo_id.h"

namespace lk {
namespace fs = std::filesystem;
namespace {

// A name beside `path` that nobody else uses.
std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> count{0};
  return fmt::format("{}.{}.{}.tmp", path, getpid(), count++);
}

tl::unexpected<Error> cannot_write(const std::string& path, const std::error_code& error) {
  return fail(ErrorKind::kResource, "the hub cache cannot be written: {}: {}", path,
              error.message());
}

Status make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return cannot_write(path.string(), error);
  return {};
}

Status replace(const std::string& temporary, const std::string& path) {
  std::error_code error;
  fs::rename(temporary, path, error);
  if (!error) return {};
  std::error_code ignored;
  fs::remove(temporary, ignored);
  return cannot_write(path, error);
}

bool write_file(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file.good();
}

std::string read_ref(const std::string& path) {
  std::string text(64, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

bool is_short_hash(const std::string& text) {
  return text.size() >= 7 && text.size() < 40 &&
         text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace

HubCache::HubCache(std::string root, std::string_view id)
    : root_(std::move(root)), name_(repo_folder_name(id)), folder_(root_ + "/" + name_) {}

std::string HubCache::snapshot(const std::string& commit) const {
  return folder_ + "/snapshots/" + commit;
}

std::string HubCache::blob(const std::string& etag) const { return folder_ + "/blobs/" + etag; }

std::string HubCache::lock_path(const std::string& etag) const {
  return root_ + "/.locks/" + name_ + "/" + etag + ".lock";
}

std::optional<std::string> HubCache::find_commit(const std::string& revision) const {
  std::error_code error;
  if (is_commit_hash(revision)) {
    if (fs::is_directory(snapshot(revision), error)) return revision;
    return std::nullopt;
  }
  const std::string commit = read_ref(folder_ + "/refs/" + revision);
  if (is_commit_hash(commit)) return commit;
  if (!is_short_hash(revision)) return std::nullopt;
  std::optional<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder_ + "/snapshots", error)) {
    const std::string name = entry.path().filename().string();
    if (!is_commit_hash(name) || !name.starts_with(revision)) continue;
    if (found) return std::nullopt;  // stands for two
    found = name;
  }
  return found;
}

bool HubCache::has_file(const std::string& commit, const std::string& file) const {
  std::error_code error;
  return fs::is_regular_file(snapshot(commit) + "/" + file, error);
}

bool HubCache::known_absent(const std::string& commit, const std::string& file) const {
  std::error_code error;
  return fs::is_regular_file(folder_ + "/.no_exist/" + commit + "/" + file, error);
}

Status HubCache::prepare() const {
  LK_RETURN_IF_ERROR(make_folder(folder_ + "/blobs"));
  LK_RETURN_IF_ERROR(make_folder(root_ + "/.locks/" + name_));
  // Tells backup tools what this is (bford.info/cachedir).
  std::error_code error;
  const std::string tag = root_ + "/CACHEDIR.TAG";
  if (!fs::exists(tag, error)) write_file(tag, "Signature: 8a477f597d28d172789f06886806bc55\n");
  return {};
}

Status HubCache::link(const std::string& commit, const std::string& file,
                      const std::string& etag) const {
  const std::string path = snapshot(commit) + "/" + file;
  LK_RETURN_IF_ERROR(make_folder(fs::path(path).parent_path()));
  std::string target = "../../";
  for (size_t i = 0; i < static_cast<size_t>(std::count(file.begin(), file.end(), '/')); ++i)
    target += "../";
  target += "blobs/" + etag;
  std::error_code error;
  if (fs::read_symlink(path, error) == target) return {};
  const std::string temporary = temporary_name(path);
  error.clear();
  fs::create_symlink(target, temporary, error);
  if (error) return cannot_write(path, error);
  return replace(temporary, path);
}

Status HubCache::write_ref(const std::string& revision, const std::string& commit) const {
  const std::string path = folder_ + "/refs/" + revision;
  if (revision == commit || read_ref(path) == commit) return {};
  LK_RETURN_IF_ERROR(make_folder(fs::path(path).parent_path()));
  const std::string temporary = temporary_name(path);
  if (!write_file(temporary, commit)) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    return cannot_write(path, std::error_code(errno, std::generic_category()));
  }
  return replace(temporary, path);
}

void HubCache::mark_absent(const std::string& commit, const std::string& file) const {
  const std::string path = folder_ + "/.no_exist/" + commit + "/" + file;
  std::error_code error;
  if (fs::exists(path, error)) return;
  if (make_folder(fs::path(path).parent_path())) write_file(path, "");
}

}  // namespace lk
