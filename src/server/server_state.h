// What the routes' handlers work with. Borrowed from the Server; used on the loop's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/adapter_store.h"
#include "engine/engine_service.h"
#include "server/api/served_model.h"
#include "server/auth.h"
#include "server/generation.h"
#include "server/http/http_server.h"
#include "server/log_writer.h"
#include "server/path_policy.h"

namespace lk {

class EventLog;
class Metrics;

struct ServerOptions {
  std::string version;
  HttpOptions http;
  ApiKeys keys;
  GenerationOptions generation;
  PathPolicy paths;  // where adapters may be loaded from
  bool allow_runtime_lora = false;
  int max_loras = 0;                              // for metrics
  std::chrono::milliseconds shutdown_timeout{0};  // of a drain; 0: as long as it takes
  std::chrono::milliseconds stuck_after{60'000};  // a step that runs longer is a fault
  bool end_if_stuck = false;                      // which the server does not outlive
  bool log_requests = false, log_prompts = false;
  LogWriter::Sink log_sink;  // empty: stderr
};

struct ServerState {
  const ServerOptions& options;
  const ServedModel& served;
  EngineService& engine;
  AdapterStore& adapters;
  Generations& generations;
  Metrics& metrics;
  EventLog& events;
  IoLoop& loop;
  WorkPool& pool;
  WorkPool& downloads;                // for what waits for the network
  const std::atomic<bool>& stopping;  // ends downloads
  HttpServer* http = nullptr;
  bool draining = false;
};

// {"error": ...} with the error's status; 503 and 429 say when to come back.
void reply_error(Exchange& exchange, const ApiError& error, HttpHeaders headers = {});

}  // namespace lk
