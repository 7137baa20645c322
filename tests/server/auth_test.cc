#include "server/auth.h"

#include <gtest/gtest.h>

#include "server/routes.h"

namespace lk {
namespace {

TEST(Auth, ComparesWholeSecrets) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_FALSE(same_secret("abd", "abc"));
  EXPECT_FALSE(same_secret("ab", "abc"));
  EXPECT_FALSE(same_secret("abcabc", "abc"));
  EXPECT_FALSE(same_secret("", "abc"));
  EXPECT_FALSE(same_secret("abc", ""));
}

// W04: a key of its own for those who load adapters.
TEST(BugCases, W04_TheAdminKeyIsAnotherRole) {
  const ApiKeys keys{{"user", "other"}, {"admin"}};
  EXPECT_EQ(check_access(keys, Role::kOpen, ""), Access::kGranted);
  EXPECT_EQ(check_access(keys, Role::kInfer, "Bearer user"), Access::kGranted);
  EXPECT_EQ(check_access(keys, Role::kInfer, "bearer  other"), Access::kGranted);
  EXPECT_EQ(check_access(keys, Role::kInfer, "Bearer admin"), Access::kGranted);
  EXPECT_EQ(check_access(keys, Role::kAdmin, "Bearer admin"), Access::kGranted);
  EXPECT_EQ(check_access(keys, Role::kAdmin, "Bearer user"), Access::kForbidden);
  EXPECT_EQ(check_access(keys, Role::kAdmin, "Bearer nobody"), Access::kUnauthorized);
  for (const char* wrong : {"", "Bearer", "Bearer ", "user", "Basic user", "Bearer userx"}) {
    EXPECT_EQ(check_access(keys, Role::kInfer, wrong), Access::kUnauthorized) << wrong;
    EXPECT_EQ(check_access(keys, Role::kAdmin, wrong), Access::kUnauthorized) << wrong;
  }
}

TEST(Auth, WithoutAnAdminKeyTheApiKeyLoads) {
  const ApiKeys one{{"user"}, {}};
  EXPECT_EQ(check_access(one, Role::kAdmin, "Bearer user"), Access::kGranted);
  EXPECT_EQ(check_access(one, Role::kAdmin, ""), Access::kUnauthorized);
  EXPECT_EQ(check_access({}, Role::kAdmin, ""), Access::kGranted);
  const ApiKeys admin_only{{}, {"admin"}};
  EXPECT_EQ(check_access(admin_only, Role::kInfer, ""), Access::kGranted);
  EXPECT_EQ(check_access(admin_only, Role::kAdmin, ""), Access::kUnauthorized);
}

// W01: whatever changes the server is for administrators, by the table and nothing else.
TEST(BugCases, W01_EveryRouteHasItsRole) {
  for (const Route& route : routes()) {
    const bool changes = route.path.find("lora_adapter") != std::string_view::npos;
    const bool open = route.path == "/health" || route.path == "/ready" || route.path == "/ping" ||
                      route.path == "/version" || route.path == "/metrics" || route.path == "/load";
    EXPECT_EQ(route.role, changes ? Role::kAdmin : open ? Role::kOpen : Role::kInfer) << route.path;
  }
}

}  // namespace
}  // namespace lk
