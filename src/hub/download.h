// Downloads what a model or adapter needs into the Hugging Face cache. Several processes may do so
// at once: a file is fetched by one of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "hub/cache.h"
#include "hub/hub_api.h"

namespace lk {

struct DownloadHooks {
  // Both are called from the calling thread alone, about ten times a second; may be null.
  std::function<void(uint64_t bytes_done, uint64_t bytes_total)> progress;
  std::function<bool()> cancelled;
};

// Returns the commit that target.revision stands for, with all that check_snapshot() asks for. Up
// to four files are fetched at once. Errors: one sentence; a snapshot without its main file may be
// left behind, which nobody takes for a whole one, and partial blobs, which the next call resumes.
Result<std::string> download_snapshot(const HubTarget& target, const HubCache& cache,
                                      const DownloadHooks& hooks);

}  // namespace lk
