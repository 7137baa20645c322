// docs/tour.md names functions and their files, the pages that add something show diffs; here each
// is looked up.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace lk {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(std::string(LK_SOURCE_DIR) + "/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Tour, EveryFunctionIsDefinedWhereItSays) {
  const std::string tour = contents("docs/tour.md");
  const std::regex stop("`([A-Za-z_:]+)\\(\\)` in `([a-z0-9_/.]+)`");
  int stops = 0;
  for (std::sregex_iterator at(tour.begin(), tour.end(), stop), end; at != end; ++at, ++stops) {
    const std::string name = (*at)[1], path = (*at)[2];
    // A definition starts at a line's first column; the parameters follow, then the body.
    const std::regex definition("(^|\\n)[A-Za-z][^\\n;(]*[ &*]" + name +
                                "\\([^;{}]*\\)[a-z ]*(\\n +:[^;]*)?\\{");
    EXPECT_TRUE(std::regex_search(contents(path), definition)) << name << " in " << path;
  }
  EXPECT_GE(stops, 14);
  EXPECT_LE(stops, 18) << "the main path is a dozen functions at most (docs/design.md 9)";
  // No name escapes the check by its spelling.
  const std::regex call("\\(\\)`");
  EXPECT_EQ(std::distance(std::sregex_iterator(tour.begin(), tour.end(), call), {}), stops);
}

TEST(Tour, EveryFileExists) {
  const std::string tour = contents("docs/tour.md");
  const std::regex file("`((src|tests)/[a-z0-9_/.]*)`");
  for (std::sregex_iterator at(tour.begin(), tour.end(), file), end; at != end; ++at) {
    const std::string path = (*at)[1];
    EXPECT_TRUE(std::ifstream(std::string(LK_SOURCE_DIR) + "/" + path).good()) << path;
  }
}

std::string trimmed(const std::string& line) {
  const size_t begin = line.find_first_not_of(' ');
  return begin == line.npos ? "" : line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
}

// A worked example is one new file and the lines of one table, and the table still has the lines
// that the diff shows around its own.
class WorkedExample : public testing::TestWithParam<const char*> {};

TEST_P(WorkedExample, TouchesTwoFilesAndStillApplies) {
  std::istringstream page(contents(std::string("docs/add-a-") + GetParam() + ".md"));
  const std::regex heading("`(src/[a-z0-9_/.]+)`(, new)?:");
  std::string line, file, text;
  bool fresh = false, diff = false;
  std::set<std::string> files;
  int looked_up = 0, added = 0;
  while (std::getline(page, line)) {
    std::smatch match;
    if (std::regex_match(line, match, heading)) {
      file = match[1];
      fresh = match[2].matched;
      files.insert(file);
      text = contents(file);
      EXPECT_EQ(text.empty(), fresh) << file;
      continue;
    }
    if (line.starts_with("```")) {
      diff = line == "```diff";
      continue;
    }
    if (!diff || line.empty()) continue;
    std::string shown = trimmed(line.substr(1));
    if (line.starts_with("@@")) shown = trimmed(line.substr(2));
    added += line[0] == '+' ? 1 : 0;
    if (line[0] == '+' || shown.empty()) continue;
    EXPECT_NE(text.find(shown), text.npos) << file << " has no line " << shown;
    ++looked_up;
  }
  EXPECT_EQ(files.size(), 2u);
  EXPECT_GE(looked_up, 4);
  EXPECT_GE(added, 3);
}

INSTANTIATE_TEST_SUITE_P(Pages, WorkedExample, testing::Values("format", "kernel"));

}  // namespace
}  // namespace lk
