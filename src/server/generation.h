// Runs requests that need the engine: from a body's JSON through the model's name to an Answer,
// and the engine's token events back into it. Used on the loop's thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/adapter_store.h"
#include "engine/request.h"
#include "server/api/answer.h"
#include "server/api/served_model.h"
#include "server/http/exchange.h"
#include "server/http/io_loop.h"

namespace lk {

// What generation needs of the engine's service and the adapter store (see there).
class GenerationBackend {
 public:
  virtual ~GenerationBackend() = default;
  virtual Result<std::vector<RequestId>> submit(std::vector<Request> requests) = 0;
  virtual void cancel(RequestId id) = 0;
  virtual void pause(RequestId id) = 0;
  virtual void resume(RequestId id) = 0;
  virtual AdapterStore::Adapters find(const std::string& name) = 0;
  virtual void resolve(const std::string& name, AdapterStore::Done done) = 0;
};

// What became of a request, for metrics and logs.
struct GenerationRecord {
  std::string id, path, model;
  bool base = true;
  int status = 200;
  std::string finish;  // "stop", "length", "error", "abort"
  size_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  size_t longest_output = 0;  // tokens of the longest of its answers
  int samples = 0;            // requests of the engine
  int max_tokens = -1;
  std::chrono::steady_clock::time_point arrived, submitted, first_token, ended;  // or none: epoch
  // Seconds in the engine's queue, the longest of its requests; below 0: none came to run.
  double queued = -1;
};

// Told of what happens, on the loop's thread; metrics implement it.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  // Tokens of one request of `model` that came in one event: `gap` seconds after the one before,
  // or after the arrival for the first.
  virtual void on_token(const GenerationRecord& record, double gap, bool first) = 0;
  virtual void on_end(const GenerationRecord& record) = 0;
};

struct GenerationOptions {
  int max_running = 32;                          // --max-num-seqs
  int max_queue = -1;                            // requests that wait beyond those; -1: no bound
  std::chrono::milliseconds request_timeout{0};  // 0: none
  size_t pause_backlog = 256 << 10;              // bytes that a reader may lag behind
  // Whoever lags so far behind has this long to catch up: its request holds an adapter's memory.
  std::chrono::milliseconds pause_timeout{600'000};
  size_t inline_body = 64 << 10;  // longer bodies are parsed and tokenized beside the loop
};

class Generations {
 public:
  // All references must outlive it; `observer` may be null.
  Generations(IoLoop& loop, WorkPool& pool, const ServedModel& served, GenerationBackend& backend,
              GenerationObserver* observer, const GenerationOptions& options);
  ~Generations();

  // Answers `exchange`, at some time.
  void start(std::shared_ptr<Exchange> exchange, MakeAnswer make);
  // Events of one step.
  void deliver(std::vector<TokenEvent>&& events);
  // Ends everything that runs with this error.
  void fail_all(const ApiError& error);
  size_t active() const;  // exchanges that are being answered

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lk
