// What a name stands for, and what its callers are told.
#include <ctime>

#include "engine/adapter_store_impl.h"

namespace lk {
namespace {

// What a caller holds. Its last reference may go on the engine's thread: from there it is only
// posted.
struct Lease : Mail {
  EngineAdapter adapter;
  std::shared_ptr<AdapterVersion> version;
  std::shared_ptr<std::atomic<int>> in_use;
};

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// The loader's sentence without the folder: where an adapter lies is the operator's business.
std::string sentence(const std::string& folder, std::string text) {
  const std::string prefix = "adapter " + folder + ": ";
  if (text.compare(0, prefix.size(), prefix) == 0) text.erase(0, prefix.size());
  return replace_all(replace_all(std::move(text), folder + "/", ""), folder, "it");
}

}  // namespace

Error AdapterStore::Impl::taken(const std::string& name) {
  return {ErrorKind::kInvalid,
          fmt::format("the name {} is taken by an adapter that is loaded", quoted_name(name))};
}

void AdapterStore::Impl::serve(Call call, const std::shared_ptr<AdapterVersion>& version,
                               Answers& answers) {
  const auto at = names.find(call.name);
  const bool exists = at != names.end();
  const auto answer = [&](Result<Adapters> result) {
    answers.emplace_back(std::move(call.done), std::move(result));
  };
  if (call.kind == Call::Kind::kLoad) {
    if (exists && !call.replace) return answer(tl::unexpected<Error>(taken(call.name)));
    if (exists && at->second.ticket > call.ticket) {
      // A later call was faster: the name is its. This caller gets what it asked for.
      Name passed;
      passed.in_use = at->second.in_use;
      passed.version = version;
      return answer(lease(call.name, passed));
    }
    Name& entry = names[call.name];
    entry.path = call.path;
    entry.from_directory = false;
    entry.ticket = call.ticket;
    const uint64_t before = exists ? entry.version->identity : 0;
    if (entry.version) --entry.version->names;
    entry.version = nullptr;
    bind(entry, version);
    events.push_back(event_of(exists ? AdapterEvent::Kind::kReplaced : AdapterEvent::Kind::kLoaded,
                              call.name, entry));
    events.back().asker = AdapterEvent::Asker::kCall;
    events.back().before = before;
    return answer(lease(call.name, entry));
  }
  if (!exists) {
    if (call.known) {
      // Its name was forgotten while it waited: the directory may know it, as it would now.
      if (!options.directory.empty()) return post(std::move(call));
      return answer(fail(ErrorKind::kNotFound, "there is no adapter {}", quoted_name(call.name)));
    }
    Name& entry = names[call.name];
    entry.path = call.path;
    entry.from_directory = true;
    entry.ticket = ++last_ticket;
    bind(entry, version);
    events.push_back(event_of(AdapterEvent::Kind::kLoaded, call.name, entry));
    events.back().asker = AdapterEvent::Asker::kDirectory;
    return answer(lease(call.name, entry));
  }
  Name& entry = at->second;
  if (entry.ticket == call.ticket) {
    const uint64_t before = entry.version->identity;
    if (bind(entry, version)) {
      events.push_back(event_of(AdapterEvent::Kind::kReloaded, call.name, entry));
      events.back().before = before;
    }
  } else if (!entry.version->serves()) {
    return post(std::move(call));
  }
  answer(lease(call.name, entry));
}

bool AdapterStore::Impl::bind(Name& name, const std::shared_ptr<AdapterVersion>& version) {
  if (name.version == version) return false;
  const uint64_t before = name.version ? name.version->identity : 0;
  if (before != version->identity) {
    name.created = static_cast<int64_t>(std::time(nullptr));
    name.changed = before == 0 ? std::string()
                               : fmt::format(
                                     "its files changed while it was out of memory: {:016x} became "
                                     "{:016x}",
                                     before, version->identity);
  }
  if (name.version) --name.version->names;
  name.version = version;
  ++version->names;
  return true;
}

AdapterEvent AdapterStore::Impl::event_of(AdapterEvent::Kind kind, const std::string& name,
                                          const Name& entry) {
  AdapterEvent event;
  event.kind = kind;
  event.name = name;
  event.path = entry.path;
  event.identity = entry.version->identity;
  event.bytes = entry.version->bytes;
  event.max_rank = entry.version->max_rank;
  event.load_seconds = entry.version->load_seconds;
  return event;
}

void AdapterStore::Impl::note_evicted() {
  for (const auto& version : residency.take_evicted()) {
    for (const auto& [name, entry] : names) {
      if (entry.version == version)
        events.push_back(event_of(AdapterEvent::Kind::kEvicted, name, entry));
    }
  }
}

AdapterStore::Adapters AdapterStore::Impl::lease(const std::string& name, Name& entry) {
  auto lease = std::make_unique<Lease>();
  lease->adapter = {name, entry.version->identity, entry.version->prepared};
  lease->version = entry.version;
  lease->in_use = entry.in_use;
  residency.touch(*entry.version);
  const EngineAdapter* adapter = &lease->adapter;
  Adapters shared(adapter, [lease = lease.get(), returns = returns](const EngineAdapter*) {
    --*lease->in_use;
    --lease->version->leases;
    returns->mailbox.post(std::unique_ptr<Mail>(lease));
  });
  ++*entry.in_use;
  ++entry.version->leases;
  lease.release();
  return shared;
}

void AdapterStore::Impl::refuse(Call call, const std::string& folder, const Error& error,
                                Answers& answers) {
  const auto at = names.find(call.name);
  const bool exists = at != names.end();
  const bool resolves = call.kind == Call::Kind::kResolve;
  if (resolves && (exists ? at->second.ticket != call.ticket : call.known)) {
    // The name got another version meanwhile, or was forgotten.
    return post(std::move(call));
  }
  Error told = error;
  const bool gone = error.kind == ErrorKind::kNotFound && call.path.empty();
  if (!gone) told.message = sentence(folder, std::move(told.message));
  if (resolves && gone && exists && at->second.from_directory) {
    --at->second.version->names;
    names.erase(at);
  } else if (resolves && exists) {
    // The request that named it is right: what it needs is not there now.
    told.kind = ErrorKind::kResource;
    told.message = fmt::format("adapter {}: {} (it left memory and cannot be loaded again)",
                               quoted_name(call.name), told.message);
  } else if (resolves && !gone) {
    if (told.kind == ErrorKind::kNotFound) told.kind = ErrorKind::kInvalid;
    told.message = fmt::format("adapter {} was found in --lora-dir, but cannot be loaded: {}",
                               quoted_name(call.name), told.message);
  }
  if (resolves && (exists || !gone)) {
    AdapterEvent event;
    event.kind = AdapterEvent::Kind::kFailed;
    event.asker = exists ? AdapterEvent::Asker::kRequest : AdapterEvent::Asker::kDirectory;
    event.name = call.name;
    event.error = told.message;
    events.push_back(std::move(event));
  }
  answers.emplace_back(std::move(call.done), tl::unexpected<Error>(std::move(told)));
}

}  // namespace lk
