// Endpoints about the server itself. Stateless.
#pragma once

#include <memory>

#include "server/http/exchange.h"
#include "server/server_state.h"

namespace lk {

// Why the engine does not move: it has ended, or a step takes longer than options.stuck_after.
// Empty while it does.
std::string engine_fault(const ServerState& state);

void get_health(ServerState& state, std::shared_ptr<Exchange> exchange);  // alive and stepping
void get_ready(ServerState& state, std::shared_ptr<Exchange> exchange);   // takes new requests
void get_version(ServerState& state, std::shared_ptr<Exchange> exchange);
void get_metrics(ServerState& state, std::shared_ptr<Exchange> exchange);
void get_load(ServerState& state, std::shared_ptr<Exchange> exchange);  // requests at work

}  // namespace lk
