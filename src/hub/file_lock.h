// An exclusive flock on a lock file, understood by Python's filelock, which huggingface_hub uses.
// Freed by the destructor, or by the kernel when the process ends.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace lk {

class FileLock {
 public:
  FileLock() = default;
  ~FileLock() { release(); }
  FileLock(FileLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept;

  // Returns an object that holds nothing if somebody else holds the lock. Errors: kResource (the
  // file cannot be made).
  static Result<FileLock> try_acquire(const std::string& path);

  bool held() const { return file_ >= 0; }
  void release();

 private:
  int file_ = -1;
};

}  // namespace lk
