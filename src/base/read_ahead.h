// Has the pages of mapped files read from the disk before they are needed, on a thread of its own.
// Without it a loader that also works on what it reads waits for the disk at every page fault.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace lk {

class ReadAhead {
 public:
  // `ranges` in the order of use; they must stay mapped. At most `distance` bytes are read beyond
  // those that are `done`. Where no thread can be started nothing is read ahead.
  explicit ReadAhead(std::vector<std::span<const std::byte>> ranges,
                     size_t distance = size_t{512} << 20);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead();

  // The next `bytes` of the ranges have been used. By one thread.
  void done(size_t bytes);

 private:
  void run();
  bool wait_for(size_t issued);

  std::vector<std::span<const std::byte>> ranges_;
  size_t distance_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t done_ = 0;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace lk
