#include "hub/download.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "hub/blob_fetch.h"
#include "hub/file_lock.h"
#include "hub/repo_id.h"

namespace lk {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostThreads = 4;
constexpr auto kTick = std::chrono::milliseconds(100);

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

uint64_t size_of(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<uint64_t>(size);
}

// One file on its way.
struct Job {
  const RepoFile* file = nullptr;
  std::atomic<uint64_t> done{0}, total{0};  // bytes
};

class Download {
 public:
  Download(const HubTarget& target, const HubCache& cache, const DownloadHooks& hooks)
      : target_(target), cache_(cache), hooks_(hooks) {}

  Result<std::string> run() {
    LK_RETURN_IF_ERROR(in_threads(1, [this](HubApi& api) -> Status {
      LK_ASSIGN_OR_RETURN(info_, api.repo_info());
      return {};
    }));
    std::vector<std::string> names;
    for (const RepoFile& file : info_.files) names.push_back(file.name);
    LK_ASSIGN_OR_RETURN(names, needed_files(target_.kind, names,
                                            fmt::format("{} ({})", target_.id, target_.revision)));
    LK_RETURN_IF_ERROR(cache_.prepare());
    LK_RETURN_IF_ERROR(fetch_all(names));
    if (names.back() == kWeightIndex) {
      LK_ASSIGN_OR_RETURN(names, index_shards(cache_.snapshot(info_.commit) + "/" + kWeightIndex));
      LK_RETURN_IF_ERROR(fetch_all(names));
    }
    for (const std::string& name : optional_files(target_.kind)) {
      if (info_.find(name) == nullptr) cache_.mark_absent(info_.commit, name);
    }
    if (!main_etag_.empty())
      LK_RETURN_IF_ERROR(cache_.link(info_.commit, main_file(target_.kind), main_etag_));
    LK_RETURN_IF_ERROR(cache_.write_ref(target_.revision, info_.commit));
    return info_.commit;
  }

 private:
  // Runs `work` in `count` threads, while this one shows progress and asks whether to go on. The
  // first error stops all.
  Status in_threads(size_t count, const std::function<Status(HubApi&)>& work) {
    std::mutex mutex;
    std::condition_variable ended;
    size_t running = 0;
    Status status;
    std::vector<std::thread> threads;
    const auto body = [&] {
      HubApi api(target_, stop_);
      const Status result = work(api);
      const std::lock_guard lock(mutex);
      if (!result && status) status = result;
      if (!result) stopped_ = true;
      --running;
      ended.notify_one();
    };
    {
      std::unique_lock lock(mutex);
      while (threads.size() < count) {
        try {
          threads.emplace_back(body);
          ++running;
        } catch (const std::system_error&) {  // no more threads to be had: fewer will do
          if (threads.empty()) return fail(ErrorKind::kResource, "no thread could be started");
          break;
        }
      }
      while (running > 0) {
        ended.wait_for(lock, kTick, [&] { return running == 0; });
        lock.unlock();
        if (hooks_.cancelled && hooks_.cancelled()) stopped_ = cancelled_ = true;
        show_progress();
        lock.lock();
      }
    }
    for (std::thread& thread : threads) thread.join();
    if (cancelled_) return fail(ErrorKind::kResource, "the download was interrupted");
    return status;
  }

  void show_progress() const {
    if (!hooks_.progress) return;
    uint64_t done = 0, total = 0;
    for (const Job& job : jobs_) {
      done += job.done;
      total += std::max<uint64_t>(job.total, job.done);
    }
    if (total > 0) hooks_.progress(done, total);
  }

  Status fetch_all(const std::vector<std::string>& names) {
    const size_t first = jobs_.size();
    for (const std::string& name : names) {
      const RepoFile* file = info_.find(name);
      if (file == nullptr)
        return fail(ErrorKind::kNotFound, "{} of {} names {}, which the repository does not have",
                    kWeightIndex, target_.id, name);
      Job& job = jobs_.emplace_back();
      job.file = file;
      job.total = file->size.value_or(0);
    }
    LK_RETURN_IF_ERROR(check_space(first));
    std::atomic<size_t> next{first};
    return in_threads(std::min(kMostThreads, names.size()), [&](HubApi& api) -> Status {
      for (size_t i; !stopped_ && (i = next++) < jobs_.size();)
        LK_RETURN_IF_ERROR(fetch(api, jobs_[i]));
      return {};
    });
  }

  // Before hours of work, not after them.
  Status check_space(size_t first) const {
    uint64_t needed = 0;
    for (size_t i = first; i < jobs_.size(); ++i) {
      const RepoFile& file = *jobs_[i].file;
      if (cache_.has_file(info_.commit, file.name)) continue;
      const std::string& etag = file.sha256.empty() ? file.git_sha1 : file.sha256;
      const bool known = is_hex(etag, 64) || is_hex(etag, 40);
      const uint64_t here =
          known ? std::max(size_of(cache_.blob(etag)), size_of(cache_.blob(etag) + ".incomplete"))
                : 0;
      needed += file.size.value_or(0) - std::min(here, file.size.value_or(0));
    }
    std::error_code error;
    const fs::space_info space = fs::space(cache_.blob(""), error);
    if (error || needed <= space.available) return {};
    return fail(ErrorKind::kResource,
                "{} needs {:.2f} GB more on the disk of {}, which has {:.2f} GB free", target_.id,
                static_cast<double>(needed) * 1e-9, cache_.blob(""),
                static_cast<double>(space.available) * 1e-9);
  }

  Status fetch(HubApi& api, Job& job) {
    const RepoFile& file = *job.file;
    const bool is_main = file.name == main_file(target_.kind);
    if (cache_.has_file(info_.commit, file.name)) {
      const uint64_t size = size_of(cache_.snapshot(info_.commit) + "/" + file.name);
      if (!file.size || *file.size == size) {
        job.done = job.total = size;
        return {};
      }
    }
    LK_ASSIGN_OR_RETURN(const FileHead head, api.head(info_.commit, file.name));
    if (head.size && file.size && *head.size != *file.size)
      return invalid("{} gives {} and {} bytes as the size of {} of {}", target_.settings.endpoint,
                     *file.size, *head.size, file.name, target_.id);
    BlobRequest request;
    request.url = api.file_url(info_.commit, file.name);
    request.file = file.name;
    request.path = cache_.blob(head.etag);
    request.size = head.size ? head.size : file.size;
    job.total = request.size.value_or(0);
    set_hash(file, head, request);

    LK_ASSIGN_OR_RETURN(const FileLock lock, wait_for_lock(head.etag, job));
    std::error_code error;
    if (fs::is_regular_file(request.path, error) &&
        (!request.size || size_of(request.path) == *request.size)) {
      job.done = job.total = size_of(request.path);
    } else {
      LK_RETURN_IF_ERROR(fetch_blob(api.client(), target_, request, stop_, job.done));
    }
    if (!is_main) return cache_.link(info_.commit, file.name, head.etag);
    main_etag_ = head.etag;  // of one job only
    return {};
  }

  static void set_hash(const RepoFile& file, const FileHead& head, BlobRequest& request) {
    for (const std::string& hash : {file.sha256, head.etag, file.git_sha1}) {
      if (!is_hex(hash, 64) && !is_hex(hash, 40)) continue;
      request.hash = hash;
      request.hash_kind = hash.size() == 64 ? HashKind::kSha256 : HashKind::kGitBlob;
      return;
    }
  }

  // Another process may be fetching the same: its progress is shown.
  Result<FileLock> wait_for_lock(const std::string& etag, Job& job) {
    for (;;) {
      LK_ASSIGN_OR_RETURN(FileLock lock, FileLock::try_acquire(cache_.lock_path(etag)));
      if (lock.held()) return lock;
      if (stopped_) return fail(ErrorKind::kResource, "the download was interrupted");
      job.done = size_of(cache_.blob(etag) + ".incomplete");
      std::this_thread::sleep_for(kTick);
    }
  }

  const HubTarget& target_;
  const HubCache& cache_;
  const DownloadHooks& hooks_;
  std::atomic<bool> stopped_{false};
  bool cancelled_ = false;
  const std::function<bool()> stop_ = [this] { return stopped_.load(); };
  RepoInfo info_;
  std::deque<Job> jobs_;
  std::string main_etag_;
};

}  // namespace

Result<std::string> download_snapshot(const HubTarget& target, const HubCache& cache,
                                      const DownloadHooks& hooks) {
  return Download(target, cache, hooks).run();
}

}  // namespace lk
