#include "base/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lk {
namespace {

// One read(2) of Linux moves no more than this.
constexpr size_t kMostAtOnce = size_t{1} << 30;

int64_t modified_ns(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

ErrorKind open_error_kind(int code) {
  switch (code) {
    case ENOENT:
    case ENOTDIR:
      return ErrorKind::kNotFound;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return ErrorKind::kResource;
    default:
      return ErrorKind::kInvalid;
  }
}

Result<FileReader> FileReader::open(const std::string& path) {
  FileReader file;
  file.path_ = path;
  // O_NONBLOCK: a FIFO given by mistake must not hang the open; it is refused below.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) {
    return fail(open_error_kind(errno), "cannot open {}: {}", path, std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0)
    return invalid("cannot stat {}: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return invalid("{} is not a regular file", path);
  file.size_ = static_cast<uint64_t>(info.st_size);
  file.modified_ns_ = modified_ns(info);
  return file;
}

FileReader::FileReader(FileReader&& other) noexcept { *this = std::move(other); }

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(modified_ns_, other.modified_ns_);
  std::swap(path_, other.path_);
  return *this;
}

FileReader::~FileReader() {
  if (fd_ >= 0) ::close(fd_);
}

Status FileReader::read_at(uint64_t offset, std::span<std::byte> out) const {
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(fd_, out.data() + done, std::min(out.size() - done, kMostAtOnce),
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return invalid("cannot read {}: {}", path_, std::strerror(errno));
    if (n == 0) {
      return invalid("{} had {} bytes when it was opened, but ended at byte {} while it was read",
                     path_, size_, offset + done);
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

Status FileReader::check_unchanged() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return invalid("cannot stat {}: {}", path_, std::strerror(errno));
  if (static_cast<uint64_t>(info.st_size) != size_ || modified_ns(info) != modified_ns_)
    return invalid("{} was changed while it was read", path_);
  return {};
}

}  // namespace lk
