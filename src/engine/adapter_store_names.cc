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

// The loader's sentence with the adapter called by its name: where it lies is the operator's
// business.
std::string sentence(const std::string& name, const std::string& folder, std::string text) {
  const std::string prefix = "adapter " + folder + ": ";
  if (text.compare(0, prefix.size(), prefix) == 0) text.erase(0, prefix.size());
  return fmt::format("adapter {}: {}", quoted_name(name),
                     replace_all(replace_all(std::move(text), folder + "/", ""), folder, "it"));
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
    if (entry.version) --entry.version->names;
    entry.version = nullptr;
    bind(entry, version);
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
    return answer(lease(call.name, entry));
  }
  Name& entry = at->second;
  if (entry.ticket == call.ticket) {
    bind(entry, version);
  } else if (!entry.version->serves()) {
    return post(std::move(call));
  }
  answer(lease(call.name, entry));
}

void AdapterStore::Impl::bind(Name& name, const std::shared_ptr<AdapterVersion>& version) {
  if (name.version == version) return;
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
  if (call.kind == Call::Kind::kResolve && exists && at->second.ticket != call.ticket) {
    // The name got another version meanwhile.
    return post(std::move(call));
  }
  Error told = error;
  const bool gone = error.kind == ErrorKind::kNotFound && call.path.empty();
  if (!gone) told.message = sentence(call.name, folder, std::move(told.message));
  if (call.kind == Call::Kind::kResolve && exists) {
    if (at->second.from_directory && gone) {
      --at->second.version->names;
      names.erase(at);
    } else {
      // The request that named it is right: what it needs is not there now.
      told.kind = ErrorKind::kResource;
      told.message += " (it left memory and cannot be loaded again)";
    }
  }
  answers.emplace_back(std::move(call.done), tl::unexpected<Error>(std::move(told)));
}

}  // namespace lk
