// Endpoints about the server itself. Stateless.
#pragma once

#include <memory>

#include "server/http/exchange.h"
#include "server/server_state.h"

namespace lk {

void get_health(ServerState& state, std::shared_ptr<Exchange> exchange);  // alive and stepping
void get_ready(ServerState& state, std::shared_ptr<Exchange> exchange);   // takes new requests
void get_version(ServerState& state, std::shared_ptr<Exchange> exchange);
void get_metrics(ServerState& state, std::shared_ptr<Exchange> exchange);
void get_load(ServerState& state, std::shared_ptr<Exchange> exchange);  // requests at work

}  // namespace lk
