// A file of settings for `serve --config`, in YAML as vLLM reads it. Stateless.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace lk {

// "max-model-len: 4096" becomes "--max-model-len", "4096"; a list gives its items one after the
// other, true the flag alone, false nothing (for "enable-..." its "--no-" form), an object its
// JSON. Errors: kNotFound, kInvalid, naming the file and the line.
Result<std::vector<std::string>> read_config_file(const std::string& path);

// The same from its text; `path` for errors.
Result<std::vector<std::string>> parse_config(const std::string& text, const std::string& path);

}  // namespace lk
