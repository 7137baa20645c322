// Threads that load adapters beside the engine, at the lowest priority so that running streams do
// not notice. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/adapter_residency.h"
#include "engine/mailbox.h"
#include "model/model.h"

namespace lk {

// What the store shares with the adapters that it handed out, which may outlive it.
struct AdapterReturns {
  std::atomic<size_t> bytes{0};  // packed weights that are in memory, wherever they are referred to
  Mailbox mailbox;               // last: what lies in it counts itself off
};

// Names and leases are the store's to set. The weights go back to the returns when the last
// reference is gone, whoever held it.
using LoadedAdapter = std::shared_ptr<AdapterVersion>;

class AdapterLoader {
 public:
  // Called on the loader's thread, which has low priority: must not take a lock that others wait
  // for.
  using Done = std::function<void(Result<LoadedAdapter>)>;

  AdapterLoader(const Model& model, const AdapterLoadOptions& options,
                std::shared_ptr<AdapterReturns> returns, int threads, int niceness);
  // Waits for the loads that are running; those that wait are dropped without a call.
  ~AdapterLoader();

  int threads() const { return static_cast<int>(threads_.size()); }
  // The version's source may be a later state of the folder, if its files change meanwhile.
  void start(AdapterSource source, Done done);
  // What the destructor does.
  void stop();

 private:
  struct Job {
    AdapterSource source;
    Done done;
  };
  void run();
  Result<LoadedAdapter> load(AdapterSource source) const;
  std::shared_ptr<const PreparedAdapter> prepare(std::shared_ptr<const Adapter> adapter) const;

  const Model& model_;
  const AdapterLoadOptions options_;
  const std::shared_ptr<AdapterReturns> returns_;
  const int niceness_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lk
