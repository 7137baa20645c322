#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace lk {
namespace {

std::string feed(std::vector<std::string> stops, const std::string& text, std::mt19937& rng,
                 size_t longest) {
  StopMatcher matcher(std::move(stops));
  std::string out;
  for (size_t at = 0; at < text.size() && !matcher.stopped();) {
    const size_t n = 1 + rng() % longest;
    out += matcher.push(std::string_view(text).substr(at, n));
    at += n;
  }
  return matcher.stopped() ? out : out + matcher.finish();
}

// The plain specification: the shortest prefix that ends with a stop string, without that string
// (the longest of them).
std::string specification(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = std::max(longest, stop.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopMatcher, NothingOfAStopStringIsLetOut) {
  StopMatcher matcher({"DEFGHIJ"});
  EXPECT_EQ(matcher.push("ABC"), "ABC");
  EXPECT_EQ(matcher.push("D"), "");
  EXPECT_EQ(matcher.push("EFGH"), "");
  EXPECT_EQ(matcher.push("X"), "DEFGHX");
  EXPECT_EQ(matcher.push("DEFGHI"), "");
  EXPECT_EQ(matcher.push("JK"), "");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, HeldTextComesOutAtTheEnd) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("a sto"), "a ");
  EXPECT_EQ(matcher.finish(), "sto");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, EqualsTheSpecificationForAnyPieces) {
  std::mt19937 rng(3);
  int stopped = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops(rng() % 4);
    for (std::string& stop : stops) {
      for (size_t n = 1 + rng() % 5; n > 0; --n) stop += static_cast<char>('a' + rng() % 2);
    }
    std::string text;
    for (size_t n = rng() % 30; n > 0; --n)
      text += static_cast<char>('a' + rng() % (round % 2 ? 2 : 3));
    const std::string expected = specification(stops, text);
    stopped += expected != text;
    EXPECT_EQ(feed(stops, text, rng, 6), expected) << text;
  }
  EXPECT_GT(stopped, 1000);
}

}  // namespace
}  // namespace lk
