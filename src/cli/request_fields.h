// Requests from flags, from the model's generation_config.json and from lines of JSON. Stateless.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/json.h"
#include "checkpoint/hf_config.h"
#include "cli/options.h"
#include "engine/request.h"

namespace lk {

inline constexpr int kDefaultMaxTokens = 1024;

// What a request gets where it says nothing. `request` carries no prompt.
struct RequestDefaults {
  Request request;
  std::optional<uint64_t> seed;   // none: a new one for each request
  std::optional<int> max_tokens;  // none: kDefaultMaxTokens, less where the context ends
  std::string adapter = "base";
};

// Temperature, top_p, top_k and the like: a flag wins over generation_config.json; nothing set, or
// do_sample false: greedy. Errors: a value out of range.
Result<RequestDefaults> request_defaults(const RunOptions& options, const HfConfig& config);

// Sampling as generation_config.json (if there is one) and then the flags want it; `start` where
// neither says anything; do_sample false means temperature 0. Errors: a value out of range.
Result<SamplingParams> sampling_defaults(const SamplingFlags& flags, const HfConfig& config,
                                         SamplingParams start);

// One line of input, its prompt not encoded yet.
struct LineRequest {
  Request request;  // without prompt and adapter
  std::string adapter;
  bool default_max_tokens = false;
  // text, ids, or messages with tools and template variables
  struct Chat {
    std::shared_ptr<const OrderedJson> messages, tools, variables;  // never null; may hold null
  };
  std::variant<std::string, std::vector<int32_t>, Chat> prompt;
};

// What could be read of a line, even of a bad one.
struct ParsedLine {
  std::string id = "null";  // as JSON
  Result<LineRequest> request;
};

// `what` names the line in errors ("line 3").
ParsedLine parse_line(std::string_view text, const std::string& what,
                      const RequestDefaults& defaults);

// Fills in max_tokens where nobody gave one.
void default_max_tokens(Request& request, int max_model_len);

}  // namespace lk
