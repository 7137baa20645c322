// docs/tour.md names functions and their files; here each is looked up.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
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

}  // namespace
}  // namespace lk
