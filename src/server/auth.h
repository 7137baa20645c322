// Who may call what. Stateless.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lk {

enum class Role {
  kOpen,   // anybody
  kInfer,  // who has an API key
  kAdmin,  // who has an admin key
};

struct ApiKeys {
  std::vector<std::string> infer;  // empty: everybody may infer
  std::vector<std::string> admin;  // empty: who may infer may do this too
};

enum class Access { kGranted, kUnauthorized, kForbidden };

// `authorization`: the header's value, "Bearer KEY". An admin key opens everything. Takes as long
// for a wrong key as for a right one of the same length.
Access check_access(const ApiKeys& keys, Role role, std::string_view authorization);

// Compares without telling by its time where the texts differ.
bool same_secret(std::string_view given, std::string_view secret);

}  // namespace lk
