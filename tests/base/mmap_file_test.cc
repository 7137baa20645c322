#include "base/mmap_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lk {
namespace {

std::string file_of(size_t bytes) {
  const auto path =
      std::filesystem::temp_directory_path() / ("lorikeet_mmap_test." + std::to_string(getpid()));
  std::ofstream(path, std::ios::binary) << std::string(bytes, 'x');
  return path.string();
}

// Ends the process: 0 if the bytes behind the new end can still be read.
[[noreturn]] void read_truncated(const std::string& path) {
  const auto file = MmapFile::open(path);
  if (!file || truncate(path.c_str(), 10) != 0) std::_Exit(7);
  const volatile auto last = file->bytes().back();
  std::_Exit(last == std::byte{'x'} ? 0 : 8);
}

TEST(MmapFile, AFileThatIsTruncatedWhileItIsReadIsNamed) {
  const std::string path = file_of(size_t{1} << 20);
  EXPECT_EXIT(read_truncated(path), testing::ExitedWithCode(2),
              "^lorikeet: " + path + " was truncated while it was read\n$");
  std::filesystem::remove(path);
}

TEST(MmapFile, ManyFilesAndMovesAreForgottenInTurn) {
  const std::string path = file_of(100);
  for (int i = 0; i < 3000; ++i) {
    auto file = MmapFile::open(path);
    ASSERT_TRUE(file);
    const MmapFile moved = std::move(*file);
    EXPECT_EQ(moved.bytes()[99], std::byte{'x'});
  }
  std::filesystem::remove(path);
}

// A fault that is not a mapped file's ends the process as it did before.
[[noreturn]] void raise_elsewhere(const std::string& path) {
  const auto file = MmapFile::open(path);
  raise(SIGBUS);
  raise(SIGBUS);
  std::_Exit(0);
}

TEST(MmapFile, OtherFaultsAreLeftAlone) {
  const std::string path = file_of(100);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EXPECT_DEATH(raise_elsewhere(path), "Sanitizer");  // whose handler stood before ours
#else
  EXPECT_EXIT(raise_elsewhere(path), testing::KilledBySignal(SIGBUS), "");
#endif
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lk
