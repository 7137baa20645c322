#include "server/generation.h"

#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "server/api/endpoints.h"

namespace lk {
namespace {

using Clock = std::chrono::steady_clock;

struct Generation {
  std::shared_ptr<Exchange> exchange;
  MakeAnswer make = nullptr;
  OrderedJson body;
  std::string model;
  std::unique_ptr<Answer> answer;
  std::vector<RequestId> ids;  // of the engine; by index of the answer
  std::string out;             // events of the current step
  std::unique_ptr<LoopTimer> timeout, pause_timeout;
  GenerationRecord record;
  size_t unfinished = 0;
  bool begun = false;  // a byte of a stream was written
  bool paused = false;
  bool ended = false;
  bool touched = false;  // by the step that is being delivered
};
using GenerationPtr = std::shared_ptr<Generation>;

struct Slot {
  GenerationPtr generation;
  int index = 0;
  Clock::time_point last;  // token, or the request's arrival
  size_t tokens = 0;
};

}  // namespace

struct Generations::Impl : std::enable_shared_from_this<Generations::Impl> {
  Impl(IoLoop& l, WorkPool& p, const ServedModel& s, GenerationBackend& b, GenerationObserver* o,
       const GenerationOptions& opts)
      : loop(l), pool(p), served(s), backend(b), observer(o), options(opts) {}

  IoLoop& loop;
  WorkPool& pool;
  const ServedModel& served;
  GenerationBackend& backend;
  GenerationObserver* observer;
  GenerationOptions options;
  std::unordered_map<RequestId, Slot> slots;
  std::unordered_set<GenerationPtr> active;
  std::vector<GenerationPtr> touched;

  // `work` on the pool for a long body, at once for a short one; then `next` with its value on the
  // loop, unless the generation has ended.
  template <typename Work, typename Next>
  void work_then(const GenerationPtr& generation, Work work, Next next) {
    if (generation->exchange->request().body.size() <= options.inline_body) {
      next(work());
      return;
    }
    pool.post([self = weak_from_this(), &loop = loop, generation, work = std::move(work),
               next = std::move(next)]() mutable {
      auto value = std::make_shared<decltype(work())>(work());
      loop.post([self, generation, value, next = std::move(next)]() mutable {
        if (!generation->ended && !self.expired()) next(std::move(*value));
      });
    });
  }

  void start(std::shared_ptr<Exchange> exchange, MakeAnswer make) {
    if (options.max_queue >= 0 &&
        active.size() >= static_cast<size_t>(options.max_running + options.max_queue)) {
      const ApiError error{.status = 429,
                           .message = fmt::format("the queue is full ({} requests run, {} wait): "
                                                  "try again later",
                                                  options.max_running, options.max_queue),
                           .type = "rate_limit_error",
                           .code = "queue_full"};
      exchange->reply(429, "application/json", error_body(error), {{"retry-after", "1"}});
      return;
    }
    auto generation = std::make_shared<Generation>();
    generation->exchange = std::move(exchange);
    generation->make = make;
    generation->record.id = generation->exchange->id();
    generation->record.path = generation->exchange->request().path;
    generation->record.arrived = Clock::now();
    active.insert(generation);
    generation->exchange->on_gone([self = weak_from_this(), weak = std::weak_ptr(generation)] {
      const auto impl = self.lock();
      const auto gone = weak.lock();
      if (impl && gone) impl->finish(gone, 499, "abort");
    });
    if (options.request_timeout.count() > 0) {
      generation->timeout = after(options.request_timeout, generation, &Impl::time_out);
    }
    work_then(
        generation, [generation] { return parse_body(generation->exchange->request().body); },
        [this, generation](ApiResult<OrderedJson> body) {
          if (!body) return fail(generation, body.error());
          generation->body = std::move(*body);
          find_model(generation);
        });
  }

  void find_model(const GenerationPtr& generation) {
    auto model = read_model(generation->body, served);
    if (!model) return fail(generation, model.error());
    generation->model = generation->record.model = std::move(*model);
    if (served.is_base(generation->model)) return make_answer(generation, nullptr);
    generation->record.base = false;
    if (auto adapter = backend.find(generation->model)) {
      return make_answer(generation, std::move(adapter));
    }
    backend.resolve(generation->model, [self = weak_from_this(), &loop = loop,
                                        generation](Result<AdapterStore::Adapters> found) {
      loop.post([self, generation, found = std::move(found)]() mutable {
        const auto impl = self.lock();
        if (!impl || generation->ended) return;
        if (found) return impl->make_answer(generation, std::move(*found));
        if (found.error().kind == ErrorKind::kNotFound)
          return impl->fail(generation, model_not_found(generation->model));
        ApiError error = api_error(found.error());
        error.param = "model";
        impl->fail(generation, error);
      });
    });
  }

  void make_answer(const GenerationPtr& generation, AdapterStore::Adapters adapter) {
    work_then(
        generation,
        [&served = served, generation, adapter = std::move(adapter)] {
          return generation->make(generation->body, served, generation->model, adapter);
        },
        [this, generation](ApiResult<std::unique_ptr<Answer>> answer) {
          if (!answer) return fail(generation, answer.error());
          generation->answer = std::move(*answer);
          submit(generation);
        });
  }

  void submit(const GenerationPtr& generation) {
    generation->body = nullptr;
    std::vector<Request> requests = generation->answer->take_requests();
    GenerationRecord& record = generation->record;
    for (const Request& request : requests) {
      record.prompt_tokens += request.prompt.size();
      record.max_tokens = std::max(record.max_tokens, request.max_tokens);
    }
    record.samples = static_cast<int>(requests.size());
    record.submitted = Clock::now();
    auto ids = backend.submit(std::move(requests));
    if (!ids) return fail(generation, api_error(ids.error()));
    generation->ids = std::move(*ids);
    generation->unfinished = generation->ids.size();
    for (size_t i = 0; i < generation->ids.size(); ++i) {
      slots[generation->ids[i]] = {generation, static_cast<int>(i), record.arrived};
    }
    if (generation->answer->streams()) {
      generation->exchange->on_drained([self = weak_from_this(), weak = std::weak_ptr(generation)] {
        const auto impl = self.lock();
        const auto drained = weak.lock();
        if (impl && drained) impl->resume(drained);
      });
    }
    if (generation->ids.empty()) complete(generation);
  }

  void deliver(std::vector<TokenEvent>&& events) {
    const auto now = Clock::now();
    for (TokenEvent& event : events) {
      const auto at = slots.find(event.request);
      if (at == slots.end()) continue;  // cancelled while this step ran
      take_event(at, std::move(event), now);
    }
    for (const GenerationPtr& generation : std::exchange(touched, {})) {
      generation->touched = false;
      if (!generation->ended) show(generation);
    }
  }

  void take_event(std::unordered_map<RequestId, Slot>::iterator at, TokenEvent&& event,
                  Clock::time_point now) {
    const GenerationPtr generation = at->second.generation;
    GenerationRecord& record = generation->record;
    record.cached_tokens += static_cast<size_t>(event.cached_tokens);
    if (event.token >= 0) {
      Slot& slot = at->second;
      ++record.output_tokens;
      if (record.first_token == Clock::time_point()) record.first_token = now;
      if (observer != nullptr) {
        observer->on_token(record, std::chrono::duration<double>(now - slot.last).count(),
                           slot.tokens == 0);
      }
      slot.last = now;
      record.longest_output = std::max(record.longest_output, ++slot.tokens);
    }
    const int index = at->second.index;
    if (event.finish != FinishReason::kNone) {
      record.finish = finish_reason_name(event.finish);
      if (event.times.scheduled != Clock::time_point()) {
        const std::chrono::duration<double> wait = event.times.scheduled - event.times.arrival;
        record.queued = std::max(record.queued, wait.count());
      }
      --generation->unfinished;
      slots.erase(at);
    }
    if (event.finish == FinishReason::kError) {
      return fail(generation, api_error(Error{ErrorKind::kInternal, event.error}));
    }
    generation->answer->on_event(index, std::move(event), generation->out);
    if (!generation->touched) {
      generation->touched = true;
      touched.push_back(generation);
    }
  }

  // What a step brought goes to the client.
  void show(const GenerationPtr& generation) {
    if (generation->answer->streams()) write_out(*generation);
    if (generation->unfinished == 0 || generation->answer->complete()) {
      return complete(generation);
    }
    if (!generation->paused && generation->exchange->backlog() > options.pause_backlog) {
      pause(generation);
    }
  }

  void pause(const GenerationPtr& generation) {
    generation->paused = true;
    for (const RequestId id : generation->ids) {
      if (slots.contains(id)) backend.pause(id);
    }
    generation->pause_timeout = after(options.pause_timeout, generation, &Impl::give_up_on_reader);
  }

  void give_up_on_reader(const GenerationPtr& generation) {
    fail(generation, {.status = 408,
                      .message = fmt::format("the answer was not read: {} bytes waited for {:g} s",
                                             generation->exchange->backlog(),
                                             in_seconds(options.pause_timeout)),
                      .type = "timeout_error",
                      .code = "reader_timeout"});
  }

  // `late` after `delay`, unless the generation has ended.
  std::unique_ptr<LoopTimer> after(std::chrono::milliseconds delay, const GenerationPtr& generation,
                                   void (Impl::*late)(const GenerationPtr&)) {
    return loop.after(delay, [self = weak_from_this(), weak = std::weak_ptr(generation), late] {
      const auto impl = self.lock();
      const auto still = weak.lock();
      if (impl && still) (impl.get()->*late)(still);
    });
  }

  static double in_seconds(std::chrono::milliseconds time) {
    return static_cast<double>(time.count()) / 1000;
  }

  void write_out(Generation& generation) {
    if (generation.out.empty()) return;
    if (!std::exchange(generation.begun, true)) generation.exchange->begin_events();
    generation.exchange->write(std::exchange(generation.out, {}));
  }

  void complete(const GenerationPtr& generation) {
    if (generation->answer->streams()) {
      generation->answer->end(generation->out);
      write_out(*generation);
      if (!std::exchange(generation->begun, true)) generation->exchange->begin_events();
      const auto exchange = generation->exchange;
      finish(generation, 200, generation->record.finish);
      exchange->end_events();
      return;
    }
    const auto body = generation->answer->body();
    if (!body) return fail(generation, body.error());
    const auto exchange = generation->exchange;
    finish(generation, 200, generation->record.finish);
    exchange->reply(200, "application/json", *body);
  }

  void fail(const GenerationPtr& generation, const ApiError& error) {
    const auto exchange = generation->exchange;
    std::string out;
    if (generation->begun) {
      out = std::exchange(generation->out, {});
      generation->answer->fail(error, out);
    }
    const bool begun = generation->begun;
    finish(generation, error.status, "error");
    if (begun) {
      exchange->write(std::move(out));
      exchange->end_events();
      return;
    }
    HttpHeaders headers;
    if (error.status == 503 || error.status == 429) headers.emplace_back("retry-after", "1");
    exchange->reply(error.status, "application/json", error_body(error), std::move(headers));
  }

  void time_out(const GenerationPtr& generation) {
    fail(generation,
         {.status = 504,
          .message = fmt::format("the answer took longer than --request-timeout ({:g} s)",
                                 in_seconds(options.request_timeout)),
          .type = "timeout_error",
          .code = "request_timeout"});
  }

  void resume(const GenerationPtr& generation) {
    if (!generation->paused || generation->ended) return;
    generation->paused = false;
    generation->pause_timeout.reset();
    for (const RequestId id : generation->ids) {
      if (slots.contains(id)) backend.resume(id);
    }
  }

  // Forgets the generation, and cancels what of it still runs.
  void finish(const GenerationPtr& generation, int status, std::string_view reason) {
    if (std::exchange(generation->ended, true)) return;
    for (const RequestId id : generation->ids) {
      if (slots.erase(id) != 0) backend.cancel(id);
    }
    generation->timeout.reset();
    generation->pause_timeout.reset();
    generation->record.status = status;
    generation->record.finish = reason;
    generation->record.ended = Clock::now();
    active.erase(generation);
    if (observer != nullptr) observer->on_end(generation->record);
  }
};

Generations::Generations(IoLoop& loop, WorkPool& pool, const ServedModel& served,
                         GenerationBackend& backend, GenerationObserver* observer,
                         const GenerationOptions& options)
    : impl_(std::make_shared<Impl>(loop, pool, served, backend, observer, options)) {}
Generations::~Generations() = default;

void Generations::start(std::shared_ptr<Exchange> exchange, MakeAnswer make) {
  impl_->start(std::move(exchange), make);
}
void Generations::deliver(std::vector<TokenEvent>&& events) { impl_->deliver(std::move(events)); }
void Generations::fail_all(const ApiError& error) {
  const auto active = impl_->active;
  for (const auto& generation : active) impl_->fail(generation, error);
}
size_t Generations::active() const { return impl_->active.size(); }

}  // namespace lk
