#include "engine/adapter_store.h"

#include <utility>

#include "engine/adapter_store_impl.h"

namespace lk {

AdapterStore::AdapterStore(const Model& model, AdapterStoreOptions options)
    : impl_(std::make_unique<Impl>(model, std::move(options))) {}

AdapterStore::~AdapterStore() = default;

void AdapterStore::resolve(const std::string& name, Done done) {
  Adapters adapter;
  bool absent = false;
  {
    const std::lock_guard lock(impl_->mutex);
    const auto at = impl_->names.find(name);
    if (at != impl_->names.end() && at->second.version->serves()) {
      adapter = impl_->lease(name, at->second);
      ++impl_->counters.hits;
    }
    absent = at == impl_->names.end() && (impl_->options.directory.empty() || !is_plain_name(name));
  }
  if (adapter) return done(std::move(adapter));
  if (absent) {
    return done(fail(ErrorKind::kNotFound, "there is no adapter {}", quoted_name(name)));
  }
  Impl::Call call;
  call.name = name;
  call.done = std::move(done);
  impl_->post(std::move(call));
}

AdapterStore::Adapters AdapterStore::find(const std::string& name) const {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->names.find(name);
  if (at == impl_->names.end() || !at->second.version->serves()) return nullptr;
  ++impl_->counters.hits;
  return impl_->lease(name, at->second);
}

void AdapterStore::load(const std::string& name, const std::string& path, bool replace, Done done) {
  if (const Status valid = check_adapter_name(name); !valid) {
    return done(tl::unexpected<Error>(valid.error()));
  }
  Impl::Call call;
  {
    const std::lock_guard lock(impl_->mutex);
    call.ticket = ++impl_->last_ticket;
  }
  call.kind = Impl::Call::Kind::kLoad;
  call.name = name;
  call.path = path;
  call.replace = replace;
  call.done = std::move(done);
  impl_->post(std::move(call));
}

Status AdapterStore::unload(const std::string& name) {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->names.find(name);
  if (at == impl_->names.end()) {
    return fail(ErrorKind::kNotFound, "there is no adapter {}", quoted_name(name));
  }
  AdapterEvent event = impl_->event_of(AdapterEvent::Kind::kUnloaded, name, at->second);
  event.in_use = at->second.in_use->load();
  impl_->events.push_back(std::move(event));
  --at->second.version->names;
  impl_->names.erase(at);
  impl_->residency.sweep();
  // Wakes the keeper: somebody may wait for the room.
  impl_->returns->mailbox.post(std::make_unique<Mail>());
  return {};
}

void AdapterStore::on_released(std::function<void()> tell) {
  const std::lock_guard lock(impl_->released_mutex);
  impl_->released = std::move(tell);
}

void AdapterStore::on_event(std::function<void(const AdapterEvent&)> tell) {
  const std::lock_guard lock(impl_->released_mutex);
  impl_->tell_event = std::move(tell);
}

std::vector<AdapterStatus> AdapterStore::list() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<AdapterStatus> list;
  list.reserve(impl_->names.size());
  for (const auto& [name, entry] : impl_->names) {
    const AdapterVersion& version = *entry.version;
    AdapterStatus status;
    status.name = name;
    status.path = entry.path;
    status.identity = version.identity;
    status.resident = version.prepared != nullptr;
    status.from_directory = entry.from_directory;
    status.in_use = entry.in_use->load();
    status.bytes = status.resident ? version.bytes : 0;
    status.max_rank = version.max_rank;
    status.load_seconds = version.load_seconds;
    status.created = entry.created;
    status.warnings = version.warnings;
    if (!entry.changed.empty()) status.warnings.push_back(entry.changed);
    status.description = version.description;
    list.push_back(std::move(status));
  }
  return list;
}

AdapterStoreStats AdapterStore::stats() const {
  const std::lock_guard lock(impl_->mutex);
  AdapterStoreStats stats = impl_->counters;
  stats.resident_bytes = impl_->returns->bytes;
  stats.resident = impl_->residency.count();
  stats.known = static_cast<int>(impl_->names.size());
  stats.waiting = static_cast<int>(impl_->loads.size()) - impl_->running;
  stats.evictions = impl_->residency.evictions();
  return stats;
}

}  // namespace lk
