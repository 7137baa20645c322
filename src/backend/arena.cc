#include "backend/arena.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace lk {

Arena::Arena(size_t bytes) : bytes_(bytes / kGranule * kGranule) {
  if (bytes_ > 0) add_gap(0, bytes_);
}

void Arena::add_gap(size_t offset, size_t size) {
  gaps_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

void Arena::remove_gap(std::map<size_t, size_t>::iterator gap) {
  by_size_.erase({gap->second, gap->first});
  gaps_.erase(gap);
}

std::optional<size_t> Arena::allocate(size_t bytes) {
  if (bytes > bytes_) return std::nullopt;
  const size_t size = std::max<size_t>(1, (bytes + kGranule - 1) / kGranule) * kGranule;
  const auto found = by_size_.lower_bound({size, 0});
  if (found == by_size_.end()) return std::nullopt;
  const auto [gap, offset] = *found;
  remove_gap(gaps_.find(offset));
  if (gap > size) add_gap(offset + size, gap - size);
  places_.emplace(offset, size);
  used_ += size;
  return offset;
}

void Arena::release(size_t offset) {
  const auto place = places_.find(offset);
  LK_CHECK(place != places_.end());
  size_t begin = offset, size = place->second;
  used_ -= size;
  places_.erase(place);
  const auto next = gaps_.lower_bound(begin);
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      size += before->second;
      remove_gap(before);
    }
  }
  if (next != gaps_.end() && next->first == begin + size) {
    size += next->second;
    remove_gap(next);
  }
  add_gap(begin, size);
}

}  // namespace lk
