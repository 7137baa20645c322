// docs/bug-cases.md names a test or a reason for each case; here each test is looked up.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace lk {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// "Suite.Name" of every test in the tree, and "Suite.*" of every suite.
std::set<std::string> all_tests() {
  std::set<std::string> names;
  const std::regex test("TEST(?:_F|_P)?\\(\\s*(\\w+),\\s*(\\w+)\\)");
  for (const auto& entry :
       fs::recursive_directory_iterator(std::string(LK_SOURCE_DIR) + "/tests")) {
    if (entry.path().extension() != ".cc") continue;
    const std::string text = contents(entry.path());
    for (std::sregex_iterator at(text.begin(), text.end(), test), end; at != end; ++at) {
      names.insert((*at)[1].str() + "." + (*at)[2].str());
      names.insert((*at)[1].str() + ".*");
    }
  }
  return names;
}

TEST(BugCasesPage, EveryCaseHasATestOrAReason) {
  const std::set<std::string> tests = all_tests();
  std::istringstream page(contents(std::string(LK_SOURCE_DIR) + "/docs/bug-cases.md"));
  const std::regex name("`([A-Z]\\w+\\.(?:\\w+|\\*))`");
  int cases = 0;
  for (std::string line; std::getline(page, line);) {
    if (!std::regex_search(line, std::regex("^\\| [A-X][0-9]{2} \\|"))) continue;
    ++cases;
    const size_t end = line.rfind(" |"), begin = line.rfind(" | ", end - 1);
    const std::string here = line.substr(begin + 3, end - begin - 3);
    EXPECT_GT(here.size(), 5u) << line;
    for (std::sregex_iterator at(here.begin(), here.end(), name), none; at != none; ++at)
      EXPECT_TRUE(tests.contains((*at)[1])) << (*at)[1] << " of " << line.substr(0, 6);
  }
  EXPECT_GT(cases, 140);
}

}  // namespace
}  // namespace lk
