// A file mapped read-only. Movable, not copyable; the bytes live as long as the object. Thread-safe
// to read.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace lk {

class MmapFile {
 public:
  // Errors: kNotFound if the file does not exist, kInvalid if it is no regular file or cannot be
  // mapped.
  static Result<MmapFile> open(const std::string& path);
  MmapFile(MmapFile&& other) noexcept;
  MmapFile& operator=(MmapFile&& other) noexcept;
  MmapFile(const MmapFile&) = delete;
  MmapFile& operator=(const MmapFile&) = delete;
  ~MmapFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MmapFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

// Gives the pages that lie wholly inside [data, data + size) of a mapped file back to the kernel;
// they are read again from the file when touched. Keeps a loader's resident memory at one copy.
void drop_mapped_pages(const std::byte* data, size_t size);

// Reads a whole (small) file. Errors: kNotFound, kInvalid (over `limit` bytes or unreadable).
Result<std::string> read_file(const std::string& path, size_t limit = size_t{256} << 20);

}  // namespace lk
