// The server: one I/O thread over the engine's service and the adapter store, from start to drain.
// Owns both. `run` is called once, by the thread that made it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/adapter_store.h"
#include "engine/engine.h"
#include "server/api/served_model.h"
#include "server/server_state.h"

namespace lk {

class Server {
 public:
  // `served` and the model below `engine` and `adapters` must outlive it.
  Server(const ServedModel& served, std::unique_ptr<Engine> engine,
         std::unique_ptr<AdapterStore> adapters, ServerOptions options);
  ~Server();

  // Binds the address. Errors: kInvalid.
  Status listen();
  std::string address() const;  // "http://127.0.0.1:8000"
  // Answers until SIGTERM or SIGINT, then drains: new requests get 503, running ones end, within
  // options.shutdown_timeout. A SIGINT after that ends the process at once. Returns when all is
  // answered: true if nothing was cut short. Ends the process, with 0 or 1, where a step still runs
  // that does not end: with options.end_if_stuck the server gives up on such a step by itself.
  bool run();
  // As SIGTERM does; from any thread.
  void shut_down();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lk
