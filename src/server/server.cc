#include "server/server.h"

#include <algorithm>

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "server/event_log.h"
#include "server/metrics.h"
#include "server/request_log.h"
#include "server/routes.h"
#include "server/status_routes.h"

namespace lk {
namespace {

bool failed(const TokenEvent& event) { return event.finish == FinishReason::kError; }

constexpr int kTextThreads = 2;
constexpr int kFailed = 1, kKilled = 130;
constexpr std::chrono::milliseconds kDrainPoll{20}, kStuckPoll{500};
constexpr std::chrono::seconds kLastStep{10};  // may run so long after all is answered
constexpr std::chrono::seconds kLastBytes{2};  // for answers that were cut short to go out

class EngineBackend : public GenerationBackend {
 public:
  EngineBackend(EngineService& engine, AdapterStore& adapters)
      : engine_(engine), adapters_(adapters) {}
  Result<std::vector<RequestId>> submit(std::vector<Request> requests) override {
    return engine_.submit(std::move(requests));
  }
  void cancel(RequestId id) override { engine_.cancel(id); }
  void pause(RequestId id) override { engine_.pause(id); }
  void resume(RequestId id) override { engine_.resume(id); }
  AdapterStore::Adapters find(const std::string& name) override { return adapters_.find(name); }
  void resolve(const std::string& name, AdapterStore::Done done) override {
    adapters_.resolve(name, std::move(done));
  }

 private:
  EngineService& engine_;
  AdapterStore& adapters_;
};

class Observers : public GenerationObserver {
 public:
  Observers(Metrics& metrics, RequestLog* log) : metrics_(metrics), log_(log) {}
  void on_token(const GenerationRecord& record, double gap, bool first) override {
    metrics_.on_token(record, gap, first);
  }
  void on_end(const GenerationRecord& record) override {
    metrics_.on_end(record);
    if (log_ != nullptr) log_->on_generation(record);
  }

 private:
  Metrics& metrics_;
  RequestLog* log_;
};

}  // namespace

struct Server::Impl {
  Impl(const ServedModel& served, std::unique_ptr<Engine> made, std::unique_ptr<AdapterStore> store,
       ServerOptions opts)
      : options(std::move(opts)),
        adapters(std::move(store)),
        engine(std::move(made),
               [this](std::vector<TokenEvent>&& events) {
                 loop.post([this, events = std::move(events)]() mutable {
                   const bool trouble =
                       events.empty() || std::any_of(events.begin(), events.end(), failed);
                   generations.deliver(std::move(events));
                   if (trouble) end_with_engine();
                 });
               }),
        backend(engine, *adapters),
        metrics({served.names.front(), options.max_loras}),
        writer(options.log_sink),
        events(writer),
        log(options.log_requests ? std::make_unique<RequestLog>(writer) : nullptr),
        observers(metrics, log.get()),
        generations(loop, pool, served, backend, &observers, options.generation),
        state{options, served, engine, *adapters, generations, metrics,
              events,  loop,   pool,   downloads, stopping},
        http(
            loop, options.http,
            [this](const HttpRequest& request) { return accepts(state, request); },
            [this](std::shared_ptr<Exchange> exchange) { handle(std::move(exchange)); }) {
    state.http = &http;
    if (log) http.on_access([this](const AccessRecord& access) { log->on_access(access); });
    http.on_accept_trouble(
        [this](const AcceptTrouble& trouble) { events.on_accept_trouble(trouble); });
    adapters->on_released([this] { engine.release_unused_adapters(); });
    adapters->on_event([this](const AdapterEvent& event) { events.on_adapter(event); });
  }

  void handle(std::shared_ptr<Exchange> exchange) {
    const HttpRequest& request = exchange->request();
    if (log && options.log_prompts && !request.body.empty() && accepts(state, request)) {
      log->on_prompt(exchange->id(), request.body);
    }
    route(state, std::move(exchange));
  }

  void begin_drain() {
    if (state.draining) return;
    state.draining = true;
    drain_began = std::chrono::steady_clock::now();
    events.on_drain_started(http.counters());
    http.drain(/*accept=*/true);
    drain_poll = loop.every(kDrainPoll, [this] {
      if (http.counters().exchanges == 0 && !http.sending()) loop.stop();
    });
    if (options.shutdown_timeout.count() == 0) return;
    drain_end = loop.after(options.shutdown_timeout, [this] {
      cut_drain("the server shut down before the answer was complete");
    });
  }

  void cut_drain(const std::string& why) {
    whole = false;
    events.on_drain_cut(http.counters());
    generations.fail_all({.status = 503, .message = why, .type = "service_unavailable_error"});
    drain_end = loop.after(kLastBytes, [this] { loop.stop(); });
  }

  // Without its engine a server is of no use: whoever waits was told, and who watches over it
  // starts another.
  void end_with_engine() {
    const EngineSnapshot snapshot = engine.snapshot();
    if (snapshot.alive || told_end) return;
    told_end = true;
    whole = false;
    events.on_engine_ended(snapshot.fault);
    begin_drain();
  }

  void end_if_stuck() {
    const std::string fault = engine_fault(state);
    if (fault.empty() || !engine.snapshot().alive) return;
    stuck_poll.reset();
    told_end = true;
    whole = false;
    events.on_engine_ended(fault);
    begin_drain();
    cut_drain(fault);
  }

  void on_signal(int signal) {
    if (state.draining && signal == SIGINT) std::_Exit(kKilled);
    begin_drain();
  }

  ~Impl() {
    stopping = true;
    adapters->on_released({});
    adapters->on_event({});
  }

  // Destroyed from the last to the first: nobody is left who calls what is gone.
  ServerOptions options;
  IoLoop loop;
  std::unique_ptr<AdapterStore> adapters;
  EngineService engine;
  EngineBackend backend;
  Metrics metrics;
  LogWriter writer;
  EventLog events;
  std::unique_ptr<RequestLog> log;  // null: requests are not logged
  Observers observers;
  Generations generations;
  ServerState state;
  HttpServer http;
  WorkPool pool{kTextThreads}, downloads{1};
  std::unique_ptr<LoopTimer> drain_poll, drain_end, stuck_poll;
  std::chrono::steady_clock::time_point drain_began;
  bool whole = true;      // nothing was cut short
  bool told_end = false;  // of the engine
  std::atomic<bool> stopping = false;
};

Server::Server(const ServedModel& served, std::unique_ptr<Engine> engine,
               std::unique_ptr<AdapterStore> adapters, ServerOptions options)
    : impl_(std::make_unique<Impl>(served, std::move(engine), std::move(adapters),
                                   std::move(options))) {}
Server::~Server() = default;

Status Server::listen() { return impl_->http.listen(); }

std::string Server::address() const {
  const std::string host = impl_->http.host();
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", v6 ? "[" + host + "]" : host, impl_->http.port());
}

bool Server::run() {
  impl_->loop.on_signal([this](int signal) { impl_->on_signal(signal); });
  if (impl_->options.end_if_stuck)
    impl_->stuck_poll = impl_->loop.every(kStuckPoll, [this] { impl_->end_if_stuck(); });
  impl_->loop.run();
  impl_->events.on_drain_finished(impl_->http.counters(),
                                  std::chrono::steady_clock::now() - impl_->drain_began);
  if (!impl_->engine.stop(kLastStep)) {
    impl_->writer.flush();
    std::_Exit(impl_->whole ? 0 : kFailed);  // what is destroyed would wait for the step
  }
  return impl_->whole;
}

void Server::shut_down() {
  impl_->loop.post([this] { impl_->begin_drain(); });
}

}  // namespace lk
