// Places for pieces in one run of bytes, wherever those lie: the smallest gap that holds a piece is
// taken, and gaps that meet become one. Bookkeeping alone. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace lk {

class Arena {
 public:
  static constexpr size_t kGranule = 256;  // what offsets and places are multiples of

  // Whole granules of `bytes` are shared out.
  explicit Arena(size_t bytes);

  // Offset of a place for `bytes`, at least one granule; nothing if no gap holds them.
  std::optional<size_t> allocate(size_t bytes);
  // Of a place that allocate gave and that was not released since.
  void release(size_t offset);

  size_t used() const { return used_; }
  size_t free() const { return bytes_ - used_; }
  size_t largest_gap() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void add_gap(size_t offset, size_t size);
  void remove_gap(std::map<size_t, size_t>::iterator gap);

  size_t bytes_, used_ = 0;
  std::map<size_t, size_t> places_, gaps_;       // sizes by offset
  std::set<std::pair<size_t, size_t>> by_size_;  // of gaps: size, offset
};

}  // namespace lk
