// Adapters that come and go while the server runs. Stateless.
#pragma once

#include <memory>

#include "server/http/exchange.h"
#include "server/server_state.h"

namespace lk {

// {"lora_name", "lora_path", "load_inplace"}: 200 once the adapter can be used.
void load_lora_adapter(ServerState& state, std::shared_ptr<Exchange> exchange);
// {"lora_name"}: 200 once the name is forgotten; running requests keep what they have.
void unload_lora_adapter(ServerState& state, std::shared_ptr<Exchange> exchange);

}  // namespace lk
