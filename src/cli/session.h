// Everything that `run` needs of a model folder: model, tokenizer, chat template, adapters and the
// engine over them. Used by one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cli/model_parts.h"
#include "cli/options.h"
#include "engine/engine.h"

namespace lk {

class Session {
 public:
  // Loads everything or nothing; shows progress and warnings on stderr. Errors: one sentence.
  static Result<std::unique_ptr<Session>> load(const RunOptions& options);

  Engine& engine() { return *engine_; }
  // Null for "base". Errors: kNotFound, naming the adapters that are loaded.
  Result<std::shared_ptr<const EngineAdapter>> adapter(const std::string& name) const;

  // A text as it is; what the tokenizer's post-processor adds (BOS) is added.
  Result<std::vector<int32_t>> encode_prompt(std::string_view text) const;
  // A conversation through the chat template, up to where the answer begins. `tools` and
  // `extra_variables` may be null.
  Result<std::vector<int32_t>> encode_chat(const OrderedJson& messages, const OrderedJson& tools,
                                           const OrderedJson& extra_variables) const;

 private:
  Session() = default;
  Status load_adapters(const RunOptions& options, const std::vector<LoraFlag>& flags);
  Result<std::shared_ptr<const EngineAdapter>> load_adapter(const LoraFlag& flag,
                                                            const AdapterLoadOptions& options);

  ModelParts parts_;
  std::map<std::string, std::shared_ptr<const EngineAdapter>> adapters_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace lk
