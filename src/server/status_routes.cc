#include "server/status_routes.h"

#include <nlohmann/json.hpp>

#include "server/metrics.h"

namespace lk {
namespace {

void reply_fault(Exchange& exchange, std::string why) {
  reply_error(exchange,
              {.status = 503, .message = std::move(why), .type = "service_unavailable_error"});
}

}  // namespace

std::string engine_fault(const ServerState& state) {
  const EngineSnapshot engine = state.engine.snapshot();
  if (!engine.alive) return "the engine has stopped: " + engine.fault;
  const auto running = std::chrono::steady_clock::now() - engine.step_began;
  if (engine.stepping && running > state.options.stuck_after) {
    return fmt::format("a step of the engine has been running for {} s",
                       std::chrono::duration_cast<std::chrono::seconds>(running).count());
  }
  return {};
}

void get_health(ServerState& state, std::shared_ptr<Exchange> exchange) {
  std::string fault = engine_fault(state);
  if (!fault.empty()) return reply_fault(*exchange, std::move(fault));
  exchange->reply(200, "text/plain; charset=utf-8", "");
}

void get_ready(ServerState& state, std::shared_ptr<Exchange> exchange) {
  std::string fault = state.draining ? "the server is shutting down" : engine_fault(state);
  if (!fault.empty()) return reply_fault(*exchange, std::move(fault));
  exchange->reply(200, "text/plain; charset=utf-8", "");
}

void get_version(ServerState& state, std::shared_ptr<Exchange> exchange) {
  exchange->reply(200, "application/json", OrderedJson{{"version", state.options.version}}.dump());
}

void get_load(ServerState& state, std::shared_ptr<Exchange> exchange) {
  exchange->reply(200, "application/json",
                  OrderedJson{{"server_load", state.generations.active()}}.dump());
}

void get_metrics(ServerState& state, std::shared_ptr<Exchange> exchange) {
  exchange->reply(200, "text/plain; version=0.0.4; charset=utf-8",
                  state.metrics.text(state.engine.snapshot(), state.adapters.list(),
                                     state.adapters.stats(), state.http->counters()));
}

}  // namespace lk
