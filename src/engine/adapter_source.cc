#include "engine/adapter_source.h"

#include <sys/stat.h>
#include <utf8proc.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

namespace lk {
namespace {

constexpr size_t kMostNameBytes = 512, kMostQuotedBytes = 100;
// Longer than a tick of the kernel's clock, by which file systems date changes.
constexpr std::chrono::nanoseconds kClockTick = std::chrono::milliseconds(20);
constexpr int kMostTicks = 10;

int64_t nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

FileState state_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {info.st_dev,
          info.st_ino,
          static_cast<uint64_t>(info.st_size),
          nanoseconds(info.st_mtim),
          nanoseconds(info.st_ctim),
          true};
}

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  return real ? real.get() : std::string();
}

bool lies_in(const std::string& path, const std::string& root) {
  return path.size() > root.size() + 1 && path.compare(0, root.size(), root) == 0 &&
         (path[root.size()] == '/' || root == "/");
}

}  // namespace

Result<AdapterSource> adapter_source(const std::string& path) {
  AdapterSource source;
  source.folder = path.find('\0') == path.npos ? real_path(path) : std::string();
  if (source.folder.empty()) return fail(ErrorKind::kNotFound, "the folder does not exist");
  for (int attempt = 0;; ++attempt) {
    source.config = state_of(source.folder + "/adapter_config.json");
    source.weights = state_of(source.folder + "/adapter_model.safetensors");
    const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
    const int64_t age = now - std::max(source.config.changed_ns, source.weights.changed_ns);
    // A date in the future comes from another clock and says nothing.
    if (age < 0 || age >= kClockTick.count()) return source;
    if (attempt == kMostTicks) {
      return fail(ErrorKind::kInvalid,
                  "its files are being written; try again when they are whole");
    }
    std::this_thread::sleep_for(kClockTick);
  }
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= NAME_MAX && name[0] != '.' &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

Result<std::string> find_in_directory(const std::string& directory, const std::string& name) {
  const auto absent = [&] {
    return fail(ErrorKind::kNotFound, "there is no adapter {}", quoted_name(name));
  };
  if (!is_plain_name(name)) return absent();
  const std::string root = real_path(directory);
  const std::string folder = real_path(directory + "/" + name);
  if (root.empty() || !lies_in(folder, root)) return absent();
  for (const char* file : {"/adapter_config.json", "/adapter_model.safetensors"}) {
    const std::string real = real_path(folder + file);
    if (!real.empty() && !lies_in(real, root)) return absent();
  }
  return folder;
}

Status check_adapter_name(const std::string& name) {
  if (name.empty()) return invalid("an adapter's name must not be empty");
  if (name.size() > kMostNameBytes) {
    return invalid("the adapter's name {} has {} bytes, more than the {} allowed",
                   quoted_name(name), name.size(), kMostNameBytes);
  }
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(name.data());
  const auto size = static_cast<utf8proc_ssize_t>(name.size());
  for (utf8proc_ssize_t i = 0; i < size;) {
    utf8proc_int32_t point = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(bytes + i, size - i, &point);
    if (n <= 0) return invalid("the adapter's name {} is not valid UTF-8", quoted_name(name));
    if (point < 0x20 || (point >= 0x7f && point < 0xa0)) {
      return invalid("the adapter's name {} holds a control character", quoted_name(name));
    }
    i += n;
  }
  return {};
}

std::string quoted_name(std::string_view name) {
  std::string out = "'";
  for (const char c : name.substr(0, kMostQuotedBytes)) {
    if (c >= 0x20 && c < 0x7f)
      out += c;
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (name.size() > kMostQuotedBytes ? "...'" : "'");
}

}  // namespace lk
