#include "backend/arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace lk {
namespace {

constexpr size_t kGranule = Arena::kGranule;

TEST(Arena, TakesTheSmallestGapThatHoldsAPiece) {
  Arena arena(100 * kGranule + 17);
  EXPECT_EQ(arena.free(), 100 * kGranule);
  const auto a = arena.allocate(10 * kGranule), b = arena.allocate(kGranule),
             c = arena.allocate(4 * kGranule - 1), d = arena.allocate(0);
  ASSERT_TRUE(a && b && c && d);
  EXPECT_EQ(*a, 0u);
  EXPECT_EQ(*b, 10 * kGranule);
  EXPECT_EQ(*c, 11 * kGranule);
  EXPECT_EQ(*d, 15 * kGranule);
  EXPECT_EQ(arena.used(), 16 * kGranule);
  arena.release(*a);
  arena.release(*c);
  EXPECT_EQ(arena.allocate(3 * kGranule), *c);
  EXPECT_EQ(arena.allocate(5 * kGranule), *a);
  EXPECT_EQ(arena.allocate(kGranule), *c + 3 * kGranule);
}

TEST(Arena, SaysWhenNoGapHoldsAPiece) {
  Arena arena(4 * kGranule);
  EXPECT_FALSE(arena.allocate(4 * kGranule + 1));
  EXPECT_FALSE(arena.allocate(SIZE_MAX));
  const auto a = arena.allocate(kGranule), b = arena.allocate(kGranule),
             c = arena.allocate(2 * kGranule);
  ASSERT_TRUE(a && b && c);
  EXPECT_FALSE(arena.allocate(0));
  EXPECT_EQ(arena.largest_gap(), 0u);
  arena.release(*a);
  arena.release(*c);
  EXPECT_EQ(arena.free(), 3 * kGranule);
  EXPECT_EQ(arena.largest_gap(), 2 * kGranule);
  EXPECT_FALSE(arena.allocate(3 * kGranule));
  arena.release(*b);
  EXPECT_EQ(arena.largest_gap(), 4 * kGranule);
  EXPECT_EQ(arena.allocate(4 * kGranule), 0u);
  EXPECT_FALSE(Arena(kGranule - 1).allocate(1));
}

// Pieces of all sizes come and go: none overlap, what is free adds up, gaps that meet are one.
TEST(Arena, PiecesNeverOverlap) {
  std::mt19937 rng(3);
  const size_t bytes = 5000 * kGranule;
  Arena arena(bytes);
  std::map<size_t, size_t> held;  // whole granules, by offset
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    if (held.empty() || rng() % 100 < 55) {
      const size_t size = rng() % 20 == 0 ? rng() % (300 * kGranule) : rng() % (12 * kGranule);
      const auto offset = arena.allocate(size);
      const size_t whole = std::max<size_t>(1, (size + kGranule - 1) / kGranule) * kGranule;
      if (!offset) {
        ++refused;
        EXPECT_LT(arena.largest_gap(), whole);
        continue;
      }
      ASSERT_EQ(*offset % kGranule, 0u);
      ASSERT_LE(*offset + whole, bytes);
      const auto next = held.lower_bound(*offset);
      if (next != held.end()) ASSERT_LE(*offset + whole, next->first);
      if (next != held.begin()) {
        const auto before = std::prev(next);
        ASSERT_LE(before->first + before->second, *offset);
      }
      held.emplace(*offset, whole);
    } else {
      const auto at = std::next(held.begin(), static_cast<ptrdiff_t>(rng() % held.size()));
      arena.release(at->first);
      held.erase(at);
    }
    size_t used = 0, end = 0, largest = 0;
    for (const auto& [offset, size] : held) {
      used += size;
      largest = std::max(largest, offset - end);
      end = offset + size;
    }
    ASSERT_EQ(arena.used(), used);
    ASSERT_EQ(arena.largest_gap(), std::max(largest, bytes - end));
  }
  EXPECT_GT(refused, 10);
}

TEST(ArenaDeathTest, PlacesAreReleasedOnce) {
  Arena arena(4 * kGranule);
  const auto place = arena.allocate(1);
  ASSERT_TRUE(place);
  EXPECT_DEATH(arena.release(*place + 1), "places_");
  arena.release(*place);
  EXPECT_DEATH(arena.release(*place), "places_");
}

}  // namespace
}  // namespace lk
