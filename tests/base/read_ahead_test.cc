#include "base/read_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

namespace lk {
namespace {

// A mapped file of `size` bytes whose pages are not in memory.
struct ColdFile {
  explicit ColdFile(size_t bytes) : size(bytes) {
    char path[] = "/var/tmp/read_ahead_XXXXXX";
    fd = ::mkstemp(path);
    EXPECT_GE(fd, 0);
    ::unlink(path);
    const std::string piece(1 << 20, 'x');
    for (size_t at = 0; at < size; at += piece.size())
      EXPECT_EQ(::write(fd, piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    data = static_cast<std::byte*>(::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0));
  }
  ~ColdFile() {
    ::munmap(data, size);
    ::close(fd);
  }
  size_t in_memory() const {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages(size / page);
    EXPECT_EQ(::mincore(data, size, pages.data()), 0);
    size_t count = 0;
    for (unsigned char p : pages) count += p & 1;
    return count * page;
  }
  // Waits for reads that are under way.
  bool reaches(size_t bytes) const {
    for (int i = 0; i < 1000; ++i) {
      if (in_memory() >= bytes) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  size_t size;
  int fd = -1;
  std::byte* data = nullptr;
};

TEST(ReadAhead, StaysWithinItsDistanceOfWhatIsDone) {
  constexpr size_t kMiB = 1 << 20;
  const ColdFile file(96 * kMiB);
  if (file.in_memory() > 0) GTEST_SKIP() << "this file system keeps its pages in memory";
  ReadAhead ahead({{file.data, 40 * kMiB}, {file.data + 40 * kMiB, 56 * kMiB}}, 16 * kMiB);
  EXPECT_TRUE(file.reaches(16 * kMiB));
  EXPECT_LE(file.in_memory(), 26 * kMiB) << "pieces of 8 MiB, and what the kernel adds";
  ahead.done(40 * kMiB);
  EXPECT_TRUE(file.reaches(56 * kMiB));
  ahead.done(56 * kMiB);
  EXPECT_TRUE(file.reaches(96 * kMiB));
}

TEST(ReadAhead, StopsWhenItIsDestroyed) {
  const std::string text(1 << 20, 'x');
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  for (int i = 0; i < 50; ++i) ReadAhead ahead({{data, text.size()}}, i % 2 ? 1 : 1 << 30);
  ReadAhead none({});
}

}  // namespace
}  // namespace lk
