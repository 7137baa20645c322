// What happens to a server beside its requests, a line each: adapters that come and go, loads that
// fail, connections that cannot be taken, the drain. Thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "engine/adapter_store.h"
#include "server/api/api_error.h"
#include "server/http/http_server.h"
#include "server/log_writer.h"

namespace lk {

class EventLog {
 public:
  explicit EventLog(LogWriter& writer) : writer_(writer) {}

  void on_adapter(const AdapterEvent& event);
  // A call of /v1/load_lora_adapter that failed, in whichever way.
  void on_refused_load(std::string_view id, const std::string& name, const ApiError& error);
  void on_accept_trouble(const AcceptTrouble& trouble);
  // The server ends with it.
  void on_engine_ended(std::string_view fault);
  void on_drain_started(const HttpCounters& http);
  // The time to answer is over: what is open is cut.
  void on_drain_cut(const HttpCounters& http);
  void on_drain_finished(const HttpCounters& http, std::chrono::steady_clock::duration time);

 private:
  // Whoever may infer can ask for an adapter that does not load as often as they like.
  struct Failure {
    std::string error;
    std::chrono::steady_clock::time_point told;
    uint64_t repeated = 0;
  };
  bool is_new(const std::string& name, const std::string& error, uint64_t& repeated);

  LogWriter& writer_;
  std::mutex mutex_;
  std::map<std::string, Failure> failures_;  // by name
};

}  // namespace lk
