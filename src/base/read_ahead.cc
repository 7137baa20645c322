#include "base/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <system_error>

namespace lk {
namespace {

constexpr size_t kPiece = size_t{8} << 20;

// A hint: what cannot be read is found out by whoever touches it.
void want_pages(const std::byte* data, size_t size) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data) + size;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

}  // namespace

ReadAhead::ReadAhead(std::vector<std::span<const std::byte>> ranges, size_t distance)
    : ranges_(std::move(ranges)), distance_(distance) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
  }
}

ReadAhead::~ReadAhead() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ReadAhead::done(size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    done_ += bytes;
  }
  changed_.notify_one();
}

// False: nothing more is to be read.
bool ReadAhead::wait_for(size_t issued) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || issued < done_ + distance_; });
  return !stopped_;
}

void ReadAhead::run() {
  size_t issued = 0;
  for (const std::span<const std::byte>& range : ranges_) {
    for (size_t at = 0; at < range.size(); at += kPiece) {
      if (!wait_for(issued)) return;
      const size_t size = std::min(kPiece, range.size() - at);
      want_pages(range.data() + at, size);
      issued += size;
    }
  }
}

}  // namespace lk
