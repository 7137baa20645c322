#include "cli/line_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lk {

Result<LineReader> LineReader::open(const std::string& path) {
  if (path == "-") return LineReader(STDIN_FILENO, 0);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return fail(errno == ENOENT ? ErrorKind::kNotFound : ErrorKind::kInvalid,
                "cannot open the input file {}: {}", path, std::strerror(errno));
  }
  struct stat info {};
  if (fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
    ::close(fd);
    return invalid("cannot read the input file {}: it is a folder", path);
  }
  return LineReader(fd, S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : 0);
}

LineReader::LineReader(LineReader&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      position_(other.position_),
      buffer_(std::move(other.buffer_)),
      begin_(other.begin_),
      searched_(other.searched_),
      end_(other.end_),
      failure_(other.failure_),
      skipping_(other.skipping_) {}

LineReader::~LineReader() {
  if (fd_ > STDIN_FILENO) ::close(fd_);
}

// False if nothing came (yet).
bool LineReader::fill(bool wait) {
  // An interrupt may come just before the wait, or to another thread: the caller gets to look a few
  // times a second.
  constexpr int kLookMs = 100;
  pollfd ready{fd_, POLLIN, 0};
  if (poll(&ready, 1, wait ? kLookMs : 0) <= 0) return false;
  constexpr size_t kPiece = size_t{1} << 16;
  buffer_.erase(0, begin_);
  searched_ -= begin_;
  begin_ = 0;
  const size_t old = buffer_.size();
  buffer_.resize(old + kPiece);
  const ssize_t n = ::read(fd_, buffer_.data() + old, kPiece);
  buffer_.resize(old + (n > 0 ? static_cast<size_t>(n) : 0));
  if (n < 0 && errno != EINTR && errno != EAGAIN) failure_ = errno;
  if (n == 0 || failure_ != 0) end_ = true;
  return n > 0 || end_;
}

LineReader::State LineReader::next(std::string& line, bool wait) {
  for (;;) {
    const size_t newline = buffer_.find('\n', searched_);
    // What stands before a failure may be half a line.
    const bool last =
        newline == std::string::npos && end_ && failure_ == 0 && begin_ < buffer_.size();
    if (newline != std::string::npos || last) {
      const size_t stop = last ? buffer_.size() : newline;
      line.assign(buffer_, begin_, stop - begin_);
      position_ += stop - begin_ + (last ? 0 : 1);
      begin_ = searched_ = last ? stop : stop + 1;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return std::exchange(skipping_, false) ? State::kTooLong : State::kLine;
    }
    if (failure_ != 0) return State::kFailed;
    if (end_) return std::exchange(skipping_, false) ? State::kTooLong : State::kEnd;
    if (skipping_ || buffer_.size() - begin_ > kMaxLine) {
      skipping_ = true;
      position_ += buffer_.size() - begin_;
      begin_ = buffer_.size();
    }
    searched_ = buffer_.size();
    if (!fill(wait)) return State::kNotYet;
  }
}

Error LineReader::failure() const {
  return {ErrorKind::kInvalid,
          fmt::format("reading the input failed: {}", std::strerror(failure_))};
}

}  // namespace lk
