#include "engine/adapter_store_impl.h"

#include <pthread.h>

#include <algorithm>
#include <functional>

namespace lk {
namespace {

struct Task : Mail {
  explicit Task(std::function<void()> f) : run(std::move(f)) {}
  void open() override { run(); }
  std::function<void()> run;
};

}  // namespace

AdapterStore::Impl::Impl(const Model& model, AdapterStoreOptions given)
    : options(std::move(given)),
      residency(options.max_bytes, options.max_resident),
      loader(model, options.load, returns, options.threads, options.niceness),
      keeper([this] { keep(); }) {}

AdapterStore::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  loader.stop();
  returns->mailbox.close();
  keeper.join();
  Answers answers;
  for (Load& load : loads) {
    for (Call& call : load.calls) {
      answers.emplace_back(std::move(call.done),
                           fail(ErrorKind::kResource, "the server is shutting down"));
    }
  }
  give(answers);
}

void AdapterStore::Impl::give(Answers& answers) {
  for (auto& [done, result] : answers) done(std::move(result));
}

void AdapterStore::Impl::post(Call call) {
  auto shared = std::make_shared<Call>(std::move(call));
  returns->mailbox.post(std::make_unique<Task>([this, shared] { look_up(std::move(*shared)); }));
}

void AdapterStore::Impl::keep() {
  ::pthread_setname_np(::pthread_self(), "lk-adapters");
  while (true) {
    std::vector<std::unique_ptr<Mail>> mail = returns->mailbox.take();
    if (mail.empty()) return;
    for (std::unique_ptr<Mail>& item : mail) {
      item->open();
      item.reset();
    }
    Answers answers;
    std::vector<AdapterEvent> told;
    {
      const std::lock_guard lock(mutex);
      residency.sweep();
      pump(answers);
      told.swap(events);
    }
    give(answers);
    const std::lock_guard lock(released_mutex);
    if (released) released();
    if (!tell_event) continue;
    for (const AdapterEvent& event : told) tell_event(event);
  }
}

void AdapterStore::Impl::look_up(Call call) {
  bool in_directory = false;
  Answers early;
  {
    const std::lock_guard lock(mutex);
    if (call.kind == Call::Kind::kResolve) {
      const auto at = names.find(call.name);
      call.known = at != names.end();
      call.ticket = call.known ? at->second.ticket : 0;
      call.path = call.known ? at->second.path : "";
      in_directory = !call.known || at->second.from_directory;
    } else if (!call.replace && names.count(call.name) > 0) {
      early.emplace_back(std::move(call.done), tl::unexpected<Error>(taken(call.name)));
    }
  }
  if (!early.empty()) return give(early);
  const auto source = [&]() -> Result<AdapterSource> {
    if (in_directory) {
      call.path.clear();
      LK_ASSIGN_OR_RETURN(call.path, find_in_directory(options.directory, call.name));
    }
    LK_ASSIGN_OR_RETURN(AdapterSource found, adapter_source(call.path));
    // Before room is made for what is no adapter at all.
    LK_RETURN_IF_ERROR(check_adapter_folder(found.folder));
    return found;
  }();
  Answers answers;
  {
    const std::lock_guard lock(mutex);
    if (source) {
      join(*source, std::move(call), answers);
    } else {
      const std::string folder = call.path;
      if (!folder.empty()) ++counters.failed_loads;
      refuse(std::move(call), folder, source.error(), answers);
    }
  }
  give(answers);
}

void AdapterStore::Impl::join(AdapterSource source, Call call, Answers& answers) {
  const auto load = std::find_if(loads.begin(), loads.end(),
                                 [&](const Load& other) { return other.source == source; });
  if (load != loads.end()) {
    load->calls.push_back(std::move(call));
    return;
  }
  const auto version = residency.find(source);
  if (version && version->serves()) return serve(std::move(call), version, answers);
  Load added;
  added.need = version ? version->bytes : source.weights.size;
  const auto at = names.find(call.name);
  if (at != names.end() && at->second.version->source == source)
    added.need = at->second.version->bytes;
  if (options.max_bytes > 0) added.need = std::min<size_t>(added.need, options.max_bytes);
  added.source = std::move(source);
  added.calls.push_back(std::move(call));
  loads.push_back(std::move(added));
}

void AdapterStore::Impl::pump(Answers& answers) {
  for (auto load = loads.begin(); load != loads.end();) {
    if (load->running) {
      ++load;
      continue;
    }
    if (const auto version = residency.find(load->source)) {
      // It drained for others who had their turn, or never had to leave.
      version->draining = false;
      std::vector<Call> calls = std::move(load->calls);
      load = loads.erase(load);
      for (Call& call : calls) serve(std::move(call), version, answers);
      continue;
    }
    if (running >= loader.threads() || !residency.reserve(load->need)) break;
    note_evicted();
    load->running = true;
    ++running;
    loader.start(load->source, [this, load](Result<LoadedAdapter> result) {
      // From a thread of low priority: no lock, the keeper does the rest.
      auto shared = std::make_shared<Result<LoadedAdapter>>(std::move(result));
      returns->mailbox.post(
          std::make_unique<Task>([this, load, shared] { finish(load, std::move(*shared)); }));
    });
    ++load;
  }
  std::vector<size_t> needs;
  for (const Load& load : loads) {
    if (!load.running) needs.push_back(load.need);
  }
  residency.drain_for(needs);
}

void AdapterStore::Impl::finish(std::list<Load>::iterator load, Result<LoadedAdapter> result) {
  Answers answers;
  {
    const std::lock_guard lock(mutex);
    --running;
    load->running = false;
    std::shared_ptr<AdapterVersion> version = result ? std::move(*result) : nullptr;
    if (!version) {
      residency.release(load->need);
      ++counters.failed_loads;
    } else if (const auto same = residency.find(version->source)) {
      // The files changed while they were read to what another load brought.
      residency.release(load->need);
      same->draining = false;
      version = same;
    } else if (residency.commit(load->need, version)) {
      ++counters.loads;
    } else if (version->bytes <= options.max_bytes) {
      // Larger than its files let expect: waits again, for as much room as it takes.
      load->need = version->bytes;
      return;
    } else {
      result = fail(ErrorKind::kResource, "it takes {} bytes, more than the {} for all adapters",
                    version->bytes, options.max_bytes);
      version = nullptr;
      ++counters.failed_loads;
    }
    note_evicted();
    std::vector<Call> calls = std::move(load->calls);
    const AdapterSource source = std::move(load->source);
    loads.erase(load);
    for (Call& call : calls) {
      if (version)
        serve(std::move(call), version, answers);
      else
        refuse(std::move(call), source.folder, result.error(), answers);
    }
  }
  give(answers);
}

}  // namespace lk
