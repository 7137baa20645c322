#include "engine/engine_service.h"

#include <pthread.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

namespace lk {
namespace {

struct Add {
  RequestId id;
  std::unique_ptr<Sequence> sequence;
};
struct Cancel {
  RequestId id;
};
struct Pause {
  RequestId id;
};
struct Resume {
  RequestId id;
};
struct ReleaseUnused {};
using Command = std::variant<Add, Cancel, Pause, Resume, ReleaseUnused>;

// How often the adapters' loads are told anew while steps follow each other.
constexpr auto kLoadsEvery = std::chrono::milliseconds(100);

}  // namespace

struct EngineService::Impl {
  Impl(std::unique_ptr<Engine> owned, Deliver to)
      : engine(std::move(owned)), deliver(std::move(to)) {
    told.total_blocks = engine->total_blocks();
    told.stats = engine->stats();
    told.last_step = Clock::now();
    thread = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "lk-engine");
      run();
      const std::lock_guard lock(mutex);
      ended = true;
      gone.notify_all();
    });
  }

  ~Impl() {
    stop_within(std::chrono::milliseconds(0));
    thread.join();
  }

  bool stop_within(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex);
    stop = true;
    wake.notify_all();
    return gone.wait_for(lock, wait, [this] { return ended; });
  }

  Result<RequestId> submit(std::vector<std::unique_ptr<Sequence>> sequences) {
    std::lock_guard lock(mutex);
    if (!told.alive)
      return fail(ErrorKind::kResource, "the engine has ended after a fault: {}", told.fault);
    const RequestId first = next_id;
    next_id += sequences.size();
    for (size_t i = 0; i < sequences.size(); ++i)
      inbox.push_back(Add{first + i, std::move(sequences[i])});
    wake.notify_one();
    return first;
  }

  void post(Command command) {
    std::lock_guard lock(mutex);
    if (!told.alive) return;
    inbox.push_back(std::move(command));
    wake.notify_one();
  }

  void run() {
    std::vector<Command> commands;
    try {
      while (next_commands(commands)) {
        for (Command& command : commands) apply(command);
        if (commands.empty() && engine->idle()) engine->check_device();
        commands.clear();
        if (engine->idle()) {
          engine->release_unused_adapters();
          tell(/*stepped=*/false);
          continue;
        }
        std::vector<TokenEvent> events;
        engine->step(events);
        tell(/*stepped=*/true);
        if (!events.empty()) deliver(std::move(events));
      }
    } catch (const std::exception& e) {
      end(e.what(), commands);
    } catch (...) {
      end("an unknown exception", commands);
    }
  }

  // Waits while there is nothing to do; after a while without a command, then there are none. False
  // if the service ends. What comes in later is for the step after the one that begins now.
  bool next_commands(std::vector<Command>& commands) {
    const bool idle = engine->idle();
    std::unique_lock lock(mutex);
    if (idle) wake.wait_for(lock, check_every, [this] { return stop || !inbox.empty(); });
    if (stop) return false;
    commands.swap(inbox);
    told.stepping = true;
    told.step_began = Clock::now();
    return true;
  }

  void apply(Command& command) {
    if (auto* add = std::get_if<Add>(&command)) {
      engine->add(add->id, std::move(add->sequence));
    } else if (const auto* cancel = std::get_if<Cancel>(&command)) {
      engine->cancel(cancel->id);
    } else if (const auto* pause = std::get_if<Pause>(&command)) {
      engine->pause(pause->id);
    } else if (const auto* resume = std::get_if<Resume>(&command)) {
      engine->resume(resume->id);
    } else {
      engine->release_unused_adapters();
    }
  }

  void tell(bool stepped) {
    EngineStats stats = engine->stats();
    const auto now = Clock::now();
    std::lock_guard lock(mutex);
    told.stepping = false;
    if (stepped) told.last_step = now;
    if (!engine->idle() && now - told_loads < kLoadsEvery) {
      stats.adapters = std::move(told.stats.adapters);
    } else {
      told_loads = now;
    }
    told.stats = std::move(stats);
  }

  // A fault that the engine cannot go on after: everybody who waits is told.
  void end(const std::string& fault, const std::vector<Command>& commands) {
    std::vector<RequestId> ids;
    const auto collect = [&ids](const std::vector<Command>& from) {
      for (const Command& command : from) {
        const auto* add = std::get_if<Add>(&command);
        if (add && add->sequence) ids.push_back(add->id);
      }
    };
    try {
      {
        std::lock_guard lock(mutex);
        told.alive = told.stepping = false;
        told.fault = fault;
        ids = engine->requests();
        collect(commands);
        collect(inbox);
        inbox.clear();
      }
      std::vector<TokenEvent> events;
      for (RequestId id : ids) {
        TokenEvent& event = events.emplace_back();
        event.request = id;
        event.finish = FinishReason::kError;
        event.error = "the engine has ended after a fault: " + fault;
      }
      deliver(std::move(events));
    } catch (const std::exception&) {
      // Not even memory for the news: `alive` tells it.
    }
  }

  std::unique_ptr<Engine> engine;  // its `prepare` and `check` from any thread, the rest from ours
  std::chrono::milliseconds check_every = engine->options().check_device_every;
  Deliver deliver;

  std::mutex mutex;
  std::condition_variable wake, gone;
  std::vector<Command> inbox;
  bool stop = false, ended = false;
  RequestId next_id = 1;
  EngineSnapshot told;

  Clock::time_point told_loads{};  // the engine's thread only
  std::thread thread;
};

EngineService::EngineService(std::unique_ptr<Engine> engine, Deliver deliver)
    : impl_(std::make_unique<Impl>(std::move(engine), std::move(deliver))) {}

EngineService::~EngineService() = default;

bool EngineService::stop(std::chrono::milliseconds wait) { return impl_->stop_within(wait); }

Result<RequestId> EngineService::submit(Request request) {
  std::vector<std::unique_ptr<Sequence>> sequences(1);
  LK_ASSIGN_OR_RETURN(sequences[0], impl_->engine->prepare(std::move(request)));
  return impl_->submit(std::move(sequences));
}

Result<std::vector<RequestId>> EngineService::submit(std::vector<Request> requests) {
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (Request& request : requests) {
    LK_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> sequence,
                        impl_->engine->prepare(std::move(request)));
    sequences.push_back(std::move(sequence));
  }
  LK_ASSIGN_OR_RETURN(const RequestId first, impl_->submit(std::move(sequences)));
  std::vector<RequestId> ids;
  for (size_t i = 0; i < requests.size(); ++i) ids.push_back(first + i);
  return ids;
}

void EngineService::cancel(RequestId id) { impl_->post(Cancel{id}); }
void EngineService::pause(RequestId id) { impl_->post(Pause{id}); }
void EngineService::resume(RequestId id) { impl_->post(Resume{id}); }
void EngineService::release_unused_adapters() { impl_->post(ReleaseUnused{}); }

int EngineService::max_model_len() const { return impl_->engine->max_model_len(); }

EngineSnapshot EngineService::snapshot() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->told;
}

}  // namespace lk
