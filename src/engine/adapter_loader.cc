#include "engine/adapter_loader.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/lora.h"

namespace lk {
namespace {

constexpr int kMostAttempts = 5;
// Each wait is twice as long as the one before: two seconds in all.
constexpr std::chrono::milliseconds kLongestWait(1024);

// Freed by whoever takes the mail, not by whoever drops the last reference.
struct Weights : Mail {
  Weights(std::shared_ptr<const PreparedAdapter> adapter, AdapterReturns& counted)
      : prepared(std::move(adapter)), returns(counted) {
    returns.bytes += prepared->bytes();
  }
  ~Weights() override {
    const size_t bytes = prepared->bytes();
    prepared.reset();
    returns.bytes -= bytes;  // once they are free
  }

  std::shared_ptr<const PreparedAdapter> prepared;
  AdapterReturns& returns;
};

std::shared_ptr<const PreparedAdapter> guard(std::shared_ptr<const PreparedAdapter> prepared,
                                             const std::shared_ptr<AdapterReturns>& returns) {
  const PreparedAdapter* adapter = prepared.get();
  auto weights = std::make_unique<Weights>(std::move(prepared), *returns);
  std::shared_ptr<const PreparedAdapter> guarded(
      adapter, [weights = weights.get(), returns](const PreparedAdapter*) {
        returns->mailbox.post(std::unique_ptr<Mail>(weights));
      });
  weights.release();
  return guarded;
}

// Niceness belongs to a thread on Linux. Where it is refused, loading goes on at normal priority.
void lower_priority(int niceness) {
  if (niceness <= 0) return;
  const sched_param none{};
  ::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &none);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), niceness);
}

int max_rank(const Adapter& adapter) {
  int rank = 0;
  for (const AdapterModule& module : adapter.modules) rank = std::max(rank, module.max_rank());
  return rank;
}

}  // namespace

AdapterLoader::AdapterLoader(const Model& model, const AdapterLoadOptions& options,
                             std::shared_ptr<AdapterReturns> returns, int threads, int niceness)
    : model_(model), options_(options), returns_(std::move(returns)), niceness_(niceness) {
  for (int i = 0; i < std::max(1, threads); ++i) threads_.emplace_back([this] { run(); });
}

AdapterLoader::~AdapterLoader() { stop(); }

void AdapterLoader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    jobs_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void AdapterLoader::start(AdapterSource source, Done done) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(source), std::move(done)});
  }
  wake_.notify_one();
}

void AdapterLoader::run() {
  ::pthread_setname_np(::pthread_self(), "lk-load");
  lower_priority(niceness_);
  while (true) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.done(load(job.source));
  }
}

// What left to make room is gone once the engine let go of it, steps later perhaps.
std::shared_ptr<const PreparedAdapter> AdapterLoader::prepare(
    std::shared_ptr<const Adapter> adapter) const {
  for (auto wait = std::chrono::milliseconds(1);; wait *= 2) {
    try {
      return model_.prepare_adapter(adapter);
    } catch (const OutOfMemory&) {
      if (wait > kLongestWait) throw;
    }
    std::this_thread::sleep_for(wait);
  }
}

Result<LoadedAdapter> AdapterLoader::load(AdapterSource source) const try {
  const auto start = std::chrono::steady_clock::now();
  Result<std::shared_ptr<const Adapter>> adapter;
  for (int attempt = 0;; ++attempt) {
    adapter = load_peft_adapter(source.folder, "", model_.linears(), options_);
    LK_ASSIGN_OR_RETURN(AdapterSource now, adapter_source(source.folder));
    if (now == source) break;
    if (attempt == kMostAttempts) return invalid("its files change while they are read");
    source = std::move(now);
  }
  if (!adapter) return tl::unexpected<Error>(std::move(adapter).error());
  auto version = std::make_shared<AdapterVersion>();
  version->source = source;
  version->identity = (*adapter)->identity;
  version->max_rank = max_rank(**adapter);
  version->warnings = (*adapter)->warnings;
  OrderedJson description = (*adapter)->describe();
  description.erase("name");  // its names come and go
  version->description = description.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  version->prepared = guard(prepare(*std::move(adapter)), returns_);
  version->bytes = version->prepared->bytes();
  version->load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return version;
} catch (const OutOfMemory& full) {
  return fail(ErrorKind::kResource, "there is not memory enough to load it: {}", full.what());
} catch (const std::bad_alloc&) {
  return fail(ErrorKind::kResource, "there is not memory enough to load it");
} catch (const std::exception& error) {  // a device that failed, which the engine sees for itself
  return fail(ErrorKind::kInternal, "{}", error.what());
}

}  // namespace lk
