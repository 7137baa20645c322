// Every path that the server answers: one row each. Stateless.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/auth.h"
#include "server/http/exchange.h"

namespace lk {

struct ServerState;

struct Route {
  std::string_view method;  // GET also answers HEAD
  std::string_view path;    // ending in "/*": everything below
  Role role;
  void (*handle)(ServerState&, std::shared_ptr<Exchange>);
  bool when_draining;  // still answered; otherwise 503
};
std::span<const Route> routes();

// Finds the route, checks who calls, and hands on; or answers 404, 405, 401, 403 or 503 itself.
void route(ServerState& state, std::shared_ptr<Exchange> exchange);
// False if `route` would refuse this request, whatever its body is.
bool accepts(const ServerState& state, const HttpRequest& request);

}  // namespace lk
