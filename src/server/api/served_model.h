// Everything about the model that endpoints read: names, tokenizer, template, parsers, defaults and
// limits. Immutable once the server runs; shared by all threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace lk {

struct ServedModel {
  std::vector<std::string> names;  // --served-model-name; the first one is told in answers
  std::string root;                // folder or hub id, as it was given
  int64_t created = 0;             // unix time of the start
  ModelInfo info;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  Error no_template;  // why there is none
  ParserChoice parsers;
  Request defaults;              // sampling defaults (generation_config.json), without a prompt
  std::optional<uint64_t> seed;  // --seed; none: a new one for each request
  int max_model_len = 0;
  int max_logprobs = 20;

  bool is_base(const std::string& name) const;
  // "lorikeet-<base hash>" or "lorikeet-<base hash>-<adapter hash>": who gave an answer.
  std::string fingerprint(const EngineAdapter* adapter) const;
};

}  // namespace lk
