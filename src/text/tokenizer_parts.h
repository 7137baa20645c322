// The small parts of tokenizer.json (all but vocab and merges), from JSON trees to the things they
// describe. Errors of all: kInvalid (wrong type, missing field), kUnsupported (an unknown type or
// option, by its name).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_table.h"

namespace lk {

// Checks one field of "model" other than vocab and merges; gives the value of a boolean, otherwise
// false.
Result<bool> read_model_option(std::string_view name, const Json& value);

struct AddedTokenEntry {
  AddedToken token;  // without its id
  int64_t id = 0;    // as the file says, not checked yet
  bool normalized = false;
};
Result<std::vector<AddedTokenEntry>> parse_added_tokens(const Json& list);

Status read_normalizer(const Json& json, Normalizer& normalizer);

// Must end with ByteLevel: without it the words are not in the byte-level alphabet that the
// vocabulary uses.
Status read_pre_tokenizer(const Json& json, PreTokenizer& pre_tokenizer);

struct AddedByTemplate {
  std::vector<int32_t> prefix, suffix;
};
Result<AddedByTemplate> read_post_processor(const Json& json, const TokenTable& tokens);

Status check_decoder(const Json& json);

}  // namespace lk
