#include "server/auth.h"

namespace lk {
namespace {

bool matches_any(const std::vector<std::string>& keys, std::string_view given) {
  bool found = false;
  for (const std::string& key : keys) found |= same_secret(given, key);
  return found;
}

std::string_view bearer(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (lower != kScheme[i]) return {};
  }
  authorization.remove_prefix(kScheme.size());
  while (authorization.starts_with(' ')) authorization.remove_prefix(1);
  return authorization;
}

}  // namespace

bool same_secret(std::string_view given, std::string_view secret) {
  volatile unsigned char different = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    different = different | static_cast<unsigned char>(given[i] ^ other);
  }
  return different == 0;
}

Access check_access(const ApiKeys& keys, Role role, std::string_view authorization) {
  if (role == Role::kOpen) return Access::kGranted;
  const std::string_view given = bearer(authorization);
  const bool admin = matches_any(keys.admin, given);
  const bool infer = matches_any(keys.infer, given);
  if (admin) return Access::kGranted;
  if (role == Role::kAdmin && !keys.admin.empty()) {
    return infer ? Access::kForbidden : Access::kUnauthorized;
  }
  return infer || keys.infer.empty() ? Access::kGranted : Access::kUnauthorized;
}

}  // namespace lk
