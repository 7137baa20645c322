// Folders of models and adapters that the command line names by folder or hub id: resolve.h with
// progress and warnings on stderr. Used by one thread; while a download runs an interrupt ends it
// (interrupted() is true then).
#pragma once

#include <string>

#include "base/result.h"
#include "cli/options.h"

namespace lk {

// `revision` empty: main. Errors: one sentence (hub/resolve.h).
Result<std::string> find_model(const std::string& id_or_folder, const std::string& revision);
Result<std::string> find_tokenizer(const std::string& id_or_folder, const std::string& revision);
Result<std::string> find_adapter(const std::string& id_or_folder, const std::string& revision);

// The same flags with folders in place of hub ids: the model and every --lora. Errors: as above.
Result<ModelFlags> find_model_and_adapters(const ModelFlags& flags);

// Brings into the cache what is missing or newer on the hub, even if there is a folder of that
// name. Returns the snapshot's folder. Errors: as above.
Result<std::string> pull_from_hub(const PullOptions& options);

}  // namespace lk
