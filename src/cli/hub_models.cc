#include "cli/hub_models.h"

#include <fmt/core.h>
#include <signal.h>

#include "cli/output.h"
#include "hub/resolve.h"

namespace lk {
namespace {

// Within its life an interrupt is remembered; behind it, it ends the process as before.
class InterruptsWatched {
 public:
  InterruptsWatched() {
    sigaction(SIGINT, nullptr, &interrupt_);
    sigaction(SIGTERM, nullptr, &terminate_);
    watch_interrupts();
  }
  ~InterruptsWatched() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }
  InterruptsWatched(const InterruptsWatched&) = delete;
  InterruptsWatched& operator=(const InterruptsWatched&) = delete;

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

// A bar on a terminal, else a line now and then.
class DownloadProgress {
 public:
  explicit DownloadProgress(std::string name) : name_(std::move(name)), begin_(now_seconds()) {}

  void show(uint64_t done, uint64_t total) {
    if (first_ < 0) first_ = static_cast<double>(done);  // what was there before is no speed
    const double seconds = now_seconds() - begin_;
    const std::string text =
        fmt::format("{:.2f} of {:.2f} GB, {:.0f} MB/s", static_cast<double>(done) * 1e-9,
                    static_cast<double>(total) * 1e-9,
                    seconds > 0 ? (static_cast<double>(done) - first_) * 1e-6 / seconds : 0.0);
    if (line_.visible()) {
      const double share = static_cast<double>(done) / static_cast<double>(total);
      if (line_.due()) line_.show(fmt::format("{} {} {}", name_, progress_bar(share), text));
    } else if (now_seconds() - said_ >= kLineSeconds) {
      said_ = now_seconds();
      write_to_stderr(fmt::format("lorikeet: downloading {}: {}\n", name_, text));
    }
  }
  void clear() { line_.clear(); }

 private:
  static constexpr double kLineSeconds = 10;
  std::string name_;
  double begin_, said_ = begin_, first_ = -1;  // seconds, seconds, bytes
  StatusLine line_;
};

using Resolve = Result<std::string>(const std::string&, const std::string&, const ResolveOptions&);

Result<std::string> find(Resolve* resolve, const std::string& name, const std::string& revision,
                         ResolveOptions options) {
  const InterruptsWatched watched;
  DownloadProgress progress(name);
  options.progress = [&](uint64_t done, uint64_t total) { progress.show(done, total); };
  options.cancelled = interrupted;
  options.warn = [&](const std::string& sentence) {
    progress.clear();
    print_warning(sentence);
  };
  return resolve(name, revision, options);
}

}  // namespace

Result<std::string> find_model(const std::string& id_or_folder, const std::string& revision) {
  return find(resolve_model, id_or_folder, revision, {});
}

Result<std::string> find_tokenizer(const std::string& id_or_folder, const std::string& revision) {
  return find(resolve_tokenizer, id_or_folder, revision, {});
}

Result<std::string> find_adapter(const std::string& id_or_folder, const std::string& revision) {
  return find(resolve_adapter, id_or_folder, revision, {});
}

Result<ModelFlags> find_model_and_adapters(const ModelFlags& flags) {
  LK_ASSIGN_OR_RETURN(const std::vector<LoraFlag> lora, parse_lora_flags(flags.lora));
  ModelFlags found = flags;
  LK_ASSIGN_OR_RETURN(found.model, find_model(flags.model, flags.revision));
  found.revision.clear();
  found.lora.clear();
  for (const LoraFlag& flag : lora) {
    LK_ASSIGN_OR_RETURN(const std::string folder, find_adapter(flag.path, ""));
    found.lora.push_back(flag.name + "=" + folder);
  }
  return found;
}

Result<std::string> pull_from_hub(const PullOptions& options) {
  ResolveOptions resolve;
  resolve.refresh = true;
  resolve.hub_only = true;
  return find(options.adapter ? resolve_adapter : resolve_model, options.id, options.revision,
              std::move(resolve));
}

}  // namespace lk
