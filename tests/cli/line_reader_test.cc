#include "cli/line_reader.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/cli/process.h"

namespace lk {
namespace {

std::vector<std::string> read_lines(const std::string& text) {
  auto reader = LineReader::open(temporary_file(text));
  EXPECT_TRUE(reader);
  std::vector<std::string> lines;
  std::string line;
  for (;;) {
    const LineReader::State state = reader->next(line, true);
    if (state == LineReader::State::kEnd) break;
    lines.push_back(state == LineReader::State::kTooLong ? "TOO LONG" : line);
  }
  EXPECT_EQ(reader->position(), text.size());
  return lines;
}

using Lines = std::vector<std::string>;

TEST(LineReader, LinesWithAndWithoutALastNewline) {
  EXPECT_EQ(read_lines(""), Lines{});
  EXPECT_EQ(read_lines("\n"), Lines{""});
  EXPECT_EQ(read_lines("a\nb"), (Lines{"a", "b"}));
  EXPECT_EQ(read_lines("a\r\n\nb\n"), (Lines{"a", "", "b"}));
  std::string text;
  Lines expected;
  for (int i = 0; i < 20000; ++i) {
    expected.push_back(std::string(i % 37, 'x') + std::to_string(i));
    text += expected.back() + "\n";
  }
  EXPECT_EQ(read_lines(text), expected);
}

TEST(LineReader, ALineOverTheLimitIsSkipped) {
  const std::string huge(LineReader::kMaxLine + 100'000, 'y');
  EXPECT_EQ(read_lines("a\n" + huge + "\nb\n"), (Lines{"a", "TOO LONG", "b"}));
  EXPECT_EQ(read_lines("a\n" + huge), (Lines{"a", "TOO LONG"}));
}

TEST(LineReader, WhatIsNoFile) {
  EXPECT_FALSE(LineReader::open("/no/such/file"));
  EXPECT_FALSE(LineReader::open("/"));
}

}  // namespace
}  // namespace lk
