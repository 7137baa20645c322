// The adapters that a server knows, by name: where they lie, which version a name stands for, and
// which are in memory. Loading runs on threads of the store's own, beside the engine; every public
// function is thread-safe.
//
// A name stands for at most one version at a time. A version is an EngineAdapter: immutable, shared
// by the requests that use it, so a reload or an unload never touches a running request. Tiers:
// folder on disk -> packed in memory (bounded by bytes and by count, least recently used first,
// never one in use) -> a slot of the engine (engine/lanes.h). A version is in use while somebody
// holds an EngineAdapter that the store gave out; letting it go takes constant time on any thread,
// and memory is freed on a thread of the store's own. While a load is running, the largest tensors
// of the file and the values not yet packed come on top of the bounds.
//
// Fairness: loads that need room wait in order of arrival. While they wait, versions in use drain:
// they finish what they have and take no new requests, which queue behind.
#pragma once

#include <cstdint>
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
  // Of the loading threads, beside those that compute: on a machine without an idle CPU a load gets
  // a tenth of one. At 19 it would get 1.5%, and requests for it would wait for seconds.
  int niceness = 10;
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
  std::string description;  // Adapter::describe() of the version as JSON, without its name; empty:
                            // never loaded
};

struct AdapterStoreStats {
  size_t resident_bytes = 0;  // packed and in memory, that which requests and slots hold included
  int resident = 0, known = 0;
  int waiting = 0;  // loads that wait for room or for a thread
  uint64_t loads = 0, failed_loads = 0, evictions = 0, hits = 0;
};

// Something happened to the adapter that a name stands for.
struct AdapterEvent {
  enum class Kind {
    kLoaded,    // the name is new
    kReloaded,  // back in memory, from files that may have changed
    kReplaced,  // the name was given another version (or the same again)
    kEvicted,   // left memory for another's sake
    kUnloaded,  // its name was taken away
    kFailed,    // `error` says why; failed `load` calls are not told, their callers know
  };
  // Who wanted it: a call of `load`, a name that was looked up in the directory, or a name that was
  // known.
  enum class Asker { kCall, kDirectory, kRequest };

  Kind kind = Kind::kLoaded;
  Asker asker = Asker::kRequest;
  std::string name, path, error;
  uint64_t identity = 0, before = 0;  // of its version now, and of the one before; 0: none
  size_t bytes = 0;
  int max_rank = 0, in_use = 0;
  double load_seconds = 0;
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

  // The version that `name` stands for, loaded if it is not in memory. Calls for the same folder
  // in the same state share one load. Waits while memory is full of adapters in use. Files that
  // changed after the version left memory make a new one, and a warning of the status says so.
  // Errors, which name the adapter: kNotFound for a name that is neither known nor anything in
  // `directory`; kInvalid or kUnsupported if it is no adapter or does not fit; kResource if it
  // alone is larger than max_bytes, if a known name's files no longer load, or if the store ends.
  void resolve(const std::string& name, Done done);
  // In memory already? Never blocks or loads; null if not (or not known, or others wait for its
  // place): then `resolve`.
  Adapters find(const std::string& name) const;

  // Gives `name` to the adapter in `path` (whether it may be read is checked by the caller). With
  // `replace` the name may be taken: running requests keep the old version, new ones get this one.
  // On an error the name is as it was before. Of two calls for one name the later one wins. Errors:
  // as `resolve`, but without the name, which the caller knows; kNotFound if there is no such
  // folder or it lacks a file; kInvalid if the name is taken and `replace` is false, or no name at
  // all (empty, over 512 bytes, not UTF-8, with control characters).
  void load(const std::string& name, const std::string& path, bool replace, Done done);
  // Forgets the name; memory is free once the last request that uses it is done. A name of the
  // directory comes back when it is asked for again. Errors: kNotFound.
  Status unload(const std::string& name);

  // By name; names in the directory only once they were used.
  std::vector<AdapterStatus> list() const;
  // `tell` is called on a thread of the store, soon after somebody let go of an adapter or one left
  // memory: an idle engine's slot may be what still holds it. Empty: nobody is told; after that
  // returns no call is running.
  void on_released(std::function<void()> tell);
  // `tell` is called on a thread of the store, after the callers have their answers. Empty: as
  // above.
  void on_event(std::function<void(const AdapterEvent&)> tell);
  AdapterStoreStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lk
