// Lines of a file or of stdin, read as they are wanted. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace lk {

class LineReader {
 public:
  // `path` "-" is stdin. Errors: kNotFound, kInvalid.
  static Result<LineReader> open(const std::string& path);
  LineReader(LineReader&& other) noexcept;
  LineReader& operator=(LineReader&&) = delete;
  ~LineReader();

  enum class State { kLine, kTooLong, kNotYet, kEnd, kFailed };
  // The next line without its newline. With `wait` false: kNotYet if it has not arrived. With
  // `wait` true: kNotYet after a moment of waiting, so that the caller can look for an interrupt.
  // Of a line over `kMaxLine` bytes nothing is kept but that it was there (kTooLong).
  // kFailed: the file cannot be read further; failure() says why.
  State next(std::string& line, bool wait);
  Error failure() const;

  // Bytes handed out, and bytes in all (0: not known).
  uint64_t position() const { return position_; }
  uint64_t size() const { return size_; }

  static constexpr size_t kMaxLine = size_t{32} << 20;

 private:
  LineReader(int fd, uint64_t size) : fd_(fd), size_(size) {}
  bool fill(bool wait);

  int fd_;
  uint64_t size_ = 0, position_ = 0;
  std::string buffer_;
  size_t begin_ = 0, searched_ = 0;  // in buffer_
  bool end_ = false;
  int failure_ = 0;  // errno of the read that failed
  bool skipping_ = false;
};

}  // namespace lk
