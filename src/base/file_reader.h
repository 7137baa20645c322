// A regular file read piece by piece with read(2): unlike a mapping, a file that somebody truncates
// meanwhile gives an error and no SIGBUS. Movable, owns the descriptor; safe to read from many
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace lk {

// What open(2) failed for, by its errno: kNotFound, kResource for want of descriptors or memory,
// else kInvalid.
ErrorKind open_error_kind(int code);

class FileReader {
 public:
  // Errors: kNotFound if the file does not exist, kInvalid if it is no regular file or unreadable,
  // kResource if no descriptor is left.
  static Result<FileReader> open(const std::string& path);
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  ~FileReader();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened
  // Fills `out` from byte `offset` on. Errors: kInvalid if the file ends before that.
  Status read_at(uint64_t offset, std::span<std::byte> out) const;
  // Whether the file still has the size and the time of change that it had at open. Errors:
  // kInvalid if not.
  Status check_unchanged() const;

 private:
  FileReader() = default;
  int fd_ = -1;
  uint64_t size_ = 0;
  int64_t modified_ns_ = 0;
  std::string path_;
};

}  // namespace lk
