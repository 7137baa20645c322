// From what a user calls a model or an adapter, a folder or a hub id, to the folder. Stateless; may
// be called from several threads and processes at once (they share one download).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "hub/settings.h"

namespace lk {

struct ResolveOptions {
  std::optional<HubSettings> settings;  // default: the environment's
  // Ask the hub even if the cache holds all that is needed, for a branch may have moved.
  bool refresh = false;
  // Take it for an id even if there is a folder of that name.
  bool hub_only = false;
  // Use folders and the cache, never the network (as HF_HUB_OFFLINE=1 does).
  bool cache_only = false;

  // Called from the calling thread alone, a few times a second while files are fetched.
  std::function<void(uint64_t bytes_done, uint64_t bytes_total)> progress;
  // Polled likewise; true ends the call with an error. What has come is kept.
  std::function<bool()> cancelled;
  std::function<void(const std::string& sentence)> warn;
};

// A folder that exists wins. Else an id ("org/name") is looked up in the Hugging Face cache and
// what is missing of it is downloaded into it. `revision`: a branch, tag or commit hash; empty:
// what stands behind an '@' of the id, or main (and a folder takes none). Returns the folder that
// holds config.json. Errors: one sentence that says what was tried: kNotFound (no such folder, id,
// revision, or needed file; offline), kInvalid (401, 403, a wrong hash, an answer that is none),
// kResource (the network or the disk), kUnsupported (no safetensors).
Result<std::string> resolve_model(const std::string& id_or_folder, const std::string& revision,
                                  const ResolveOptions& options);
// The same for a PEFT adapter: the folder that holds adapter_config.json.
Result<std::string> resolve_adapter(const std::string& id_or_folder, const std::string& revision,
                                    const ResolveOptions& options);
// The same for a tokenizer alone: the folder that holds tokenizer.json.
Result<std::string> resolve_tokenizer(const std::string& id_or_folder, const std::string& revision,
                                      const ResolveOptions& options);

}  // namespace lk
