// The inside of AdapterStore. One lock guards the state; it is held for bookkeeping only, never
// while the file system is asked, memory is freed or a caller is called. Two kinds of thread: the
// keeper takes the mailbox (operations, loaded adapters, what was given back), asks the file system
// and answers; the loader's threads load.
#pragma once

#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/adapter_loader.h"
#include "engine/adapter_residency.h"
#include "engine/adapter_store.h"

namespace lk {

struct AdapterStore::Impl {
  Impl(const Model& model, AdapterStoreOptions options);
  ~Impl();

  // A name and the version that it stands for, in memory or not.
  struct Name {
    std::string path;
    bool from_directory = false;
    uint64_t ticket = 0;  // of the call that gave it its version
    std::shared_ptr<AdapterVersion> version;
    std::shared_ptr<std::atomic<int>> in_use = std::make_shared<std::atomic<int>>(0);
    int64_t created = 0;
    std::string changed;  // a warning: the files did
  };

  // A call on its way: to the keeper, then to a load.
  struct Call {
    enum class Kind { kResolve, kLoad };
    Kind kind = Kind::kResolve;
    std::string name, path;  // path: of kLoad; of kResolve once it is found
    bool replace = false;
    bool known = false;   // the name was known when the path was looked up
    uint64_t ticket = 0;  // kLoad: its own; kResolve: that of the name when it was looked up
    Done done;
  };

  struct Load {
    AdapterSource source;
    size_t need = 0;  // bytes to reserve
    bool running = false;
    std::vector<Call> calls;
  };

  // Answers, collected under the lock and given after it.
  using Answers = std::vector<std::pair<Done, Result<Adapters>>>;

  void post(Call call);
  void keep();              // the keeper's thread
  void look_up(Call call);  // asks the file system; then join()
  void join(AdapterSource source, Call call, Answers& answers);
  void finish(std::list<Load>::iterator load, Result<LoadedAdapter> result);
  void pump(Answers& answers);  // starts loads that have room
  void serve(Call call, const std::shared_ptr<AdapterVersion>& version, Answers& answers);
  // False if it stands for that version already.
  bool bind(Name& name, const std::shared_ptr<AdapterVersion>& version);
  static AdapterEvent event_of(AdapterEvent::Kind kind, const std::string& name, const Name& entry);
  void note_evicted();  // what the residency has just dropped
  Adapters lease(const std::string& name, Name& entry);
  void refuse(Call call, const std::string& folder, const Error& error, Answers& answers);
  static Error taken(const std::string& name);
  static void give(Answers& answers);

  const AdapterStoreOptions options;
  const std::shared_ptr<AdapterReturns> returns = std::make_shared<AdapterReturns>();

  std::mutex mutex;
  std::map<std::string, Name, std::less<>> names;
  AdapterResidency residency;
  std::list<Load> loads;  // waiting in order of arrival, and running
  uint64_t last_ticket = 0;
  int running = 0;
  bool stopping = false;
  AdapterStoreStats counters;
  std::vector<AdapterEvent> events;  // not told yet

  std::mutex released_mutex;
  std::function<void()> released;
  std::function<void(const AdapterEvent&)> tell_event;

  AdapterLoader loader;
  std::thread keeper;
};

}  // namespace lk
