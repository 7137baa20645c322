// The adapters that a server knows, by name: where they lie, which version a name stands for, and
// which are in memory. Loading runs on threads of the store's own, beside the engine; every public
// function is thread-safe.
//
// A name stands for at most one version at a time. A version is an EngineAdapter: immutable, shared
// by the requests that use it, so a reload or an unload never touches a running request. Tiers:
// folder on disk -> packed in memory (bounded by bytes and by count, least recently used first,
// never one in use) -> a slot of the engine (engine/lanes.h).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "base/json.h"
#include "base/result.h"
#include "engine/request.h"
#include "model/model.h"

namespace lk {

struct AdapterStoreOptions {
  size_t max_bytes = 0;   // of packed adapters in memory, those in use included; 0: no bound
  int max_resident = 0;   // adapters in memory (--max-cpu-loras); 0: no bound
  std::string directory;  // --lora-dir: unknown names are looked up here; empty: none
  AdapterLoadOptions load;
  int threads = 1;
};

// What is known of a name, for /v1/models, metrics and logs.
struct AdapterStatus {
  std::string name, path;
  uint64_t identity = 0;  // of the version that new requests get; 0: never loaded so far
  bool resident = false;
  bool from_directory = false;  // found in --lora-dir
  int in_use = 0;               // requests that hold a version of this name
  size_t bytes = 0;             // packed; 0 if not resident
  int max_rank = 0;
  double load_seconds = 0;  // of the last load
  int64_t created = 0;      // unix time of the version
  std::vector<std::string> warnings;
  std::string description;  // Adapter::describe() of the version as JSON; empty: never loaded
};

struct AdapterStoreStats {
  size_t resident_bytes = 0;
  int resident = 0, known = 0;
  uint64_t loads = 0, failed_loads = 0, evictions = 0, hits = 0;
};

class AdapterStore {
 public:
  using Adapters = std::shared_ptr<const EngineAdapter>;
  // Called once, on a thread of the store or before the call returns.
  using Done = std::function<void(Result<Adapters>)>;

  // `model` must outlive the store.
  AdapterStore(const Model& model, AdapterStoreOptions options);
  // Waits for the loads that are running; drops the ones that wait (their `done` gets an error).
  ~AdapterStore();

  // The version that `name` stands for, loaded if it is not in memory. Two calls for the same
  // folder share one load. Errors: kNotFound for a name that is neither known nor a folder of
  // `directory`; kInvalid if the files do not fit; kResource if memory is full of adapters in use.
  void resolve(const std::string& name, Done done);
  // In memory already? Never blocks or loads; null if not (or not known).
  Adapters find(const std::string& name) const;

  // Gives `name` to the adapter in `path` (an existing folder, checked by the caller). With
  // `replace` the name may be taken: running requests keep the old version, new ones get this one.
  // On an error the name is as it was before. Errors: kInvalid if the name is taken and `replace`
  // is false.
  void load(const std::string& name, const std::string& path, bool replace, Done done);
  // Forgets the name; memory is free once the last request that uses it is done. Errors: kNotFound.
  Status unload(const std::string& name);

  std::vector<AdapterStatus> list()
      const;  // by name; names in the directory only once they were used
  AdapterStoreStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lk
