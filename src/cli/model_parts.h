// A model folder as the commands use it: model, tokenizer and chat template. Used by one thread
// while it loads.
#pragma once

#include <memory>
#include <new>
#include <optional>
#include <string>

#include "cli/options.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lk {

struct ModelParts {
  std::unique_ptr<Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  Error no_template;  // why there is none
};

uint64_t file_bytes(const std::string& path);  // 0 if there is none

// Runs `load`; where memory does not suffice, the error names what was loaded from a file of
// `bytes`.
template <typename Load>
auto within_memory(const std::string& what, uint64_t bytes, Load&& load) -> decltype(load()) {
  try {
    return load();
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::kResource, "memory ran out while {} of {} bytes was loaded", what,
                bytes);
  }
}

// Errors: kNotFound, in one sentence, if `model` is no folder.
Status check_model_folder(const std::string& model);

// Loads everything or nothing from flags.model (a folder); shows progress and warnings on stderr.
// `threads` 0: all CPUs. `adapter_slots`: distinct adapters in one batch. Errors: one sentence.
// `lora`: adapters may come.
Result<ModelParts> load_model_parts(const ModelFlags& flags, bool lora, int threads,
                                    int adapter_slots);

MoeOptions moe_options(const ModelFlags& flags, bool lora);

}  // namespace lk
