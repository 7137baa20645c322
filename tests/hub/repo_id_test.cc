#include "hub/repo_id.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace lk {
namespace {

TEST(RepoId, FollowsTheRulesOfTheHub) {
  for (const char* good : {"gpt2", "openai/gpt-oss-20b", "Foo-BAR_foo.bar123", "_a/b_", "1/2"})
    EXPECT_TRUE(is_repo_id(good)) << good;
  for (const char* bad :
       {"",           "/",     "a/",   "/a",   "a/b/c",   "foo--bar", "a..b",        "../a",
        ".a",         "a.",    "-a/b", "a/b-", "foo.git", "a b",      "caf\xc3\xa9", "a\\b",
        "http://x/y", "a/b\n", "a:b",  "a?b",  "%2e%2e/a"})
    EXPECT_FALSE(is_repo_id(bad)) << bad;
  EXPECT_TRUE(is_repo_id(fmt::format("{:a>96}/{:b>96}", "", "")));
  EXPECT_FALSE(is_repo_id(std::string(97, 'a')));
  EXPECT_FALSE(is_repo_id(std::string_view("a\0b", 3)));
}

TEST(RepoId, RevisionsCannotLeaveTheirFolder) {
  for (const char* good : {"main", "refs/pr/1", "v1.0", "feature/x-y", "6cee5e81"})
    EXPECT_TRUE(is_revision(good)) << good;
  for (const char* bad :
       {"", "../main", "a/../b", "/etc", "a//b", "a..b", "a b", "a?b", "a\nb", "~"})
    EXPECT_FALSE(is_revision(bad)) << bad;
  EXPECT_FALSE(is_revision(std::string(256, 'a')));
}

TEST(RepoId, FileNamesCannotLeaveTheirFolder) {
  for (const char* good : {"config.json", "original/a b.txt", ".gitattributes", "a..b", "\xc3\xa9"})
    EXPECT_TRUE(is_safe_file_name(good)) << good;
  for (const char* bad : {"", ".", "..", "../x", "a/../x", "/etc/passwd", "a/", "a//b", "./a",
                          "a/.", "..\\x", "a\nb", "a\x7f"})
    EXPECT_FALSE(is_safe_file_name(bad)) << bad;
  EXPECT_FALSE(is_safe_file_name(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_safe_file_name(std::string(256, 'a')));
}

TEST(RepoId, NamesTheFolderAsOtherToolsDo) {
  EXPECT_EQ(repo_folder_name("gpt2"), "models--gpt2");
  EXPECT_EQ(repo_folder_name("openai/gpt-oss-20b"), "models--openai--gpt-oss-20b");
}

}  // namespace
}  // namespace lk
