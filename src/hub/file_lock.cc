#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lk {

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  release();
  file_ = std::exchange(other.file_, -1);
  return *this;
}

Result<FileLock> FileLock::try_acquire(const std::string& path) {
  FileLock lock;
  // Group-writable, as huggingface_hub makes them: users may share a cache.
  lock.file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
  if (lock.file_ < 0)
    return fail(ErrorKind::kResource, "the lock {} cannot be opened: {}", path,
                std::strerror(errno));
  if (flock(lock.file_, LOCK_EX | LOCK_NB) != 0) {
    lock.release();
    return lock;
  }
  // Some versions of filelock delete the file when they let go of it: a lock on a deleted file
  // excludes nobody.
  struct stat held = {}, named = {};
  if (fstat(lock.file_, &held) != 0 || stat(path.c_str(), &named) != 0 ||
      held.st_ino != named.st_ino || held.st_dev != named.st_dev)
    lock.release();
  return lock;
}

void FileLock::release() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

}  // namespace lk
