// Feeds model output to output parsers, whole or in pieces, and joins what they give.
#pragma once

#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/output_parser.h"

namespace lk {

struct ParsedOutput {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const ParsedOutput&) const = default;
};
void PrintTo(const ParsedOutput& parsed, std::ostream* out);

// The small gpt-oss model's: it has harmony's tokens, and <think> and </think> as special tokens.
std::shared_ptr<const Tokenizer> marker_tokenizer();

// Adds a delta; fails the test unless pieces of calls come in order, the name in the first alone.
void add_delta(ParsedOutput& parsed, const OutputDelta& delta);

// `output` is text, with special tokens of marker_tokenizer() where it writes them (<|…|>). Without
// `random` each text between two of them is one piece, else it is cut at random places.
ParsedOutput parse_output(const OutputParserOptions& options, std::string_view output,
                          std::mt19937* random = nullptr);

// The same, token by token, with text as the detokenizer gives it.
ParsedOutput parse_tokens(const OutputParserOptions& options, const std::vector<int32_t>& ids,
                          std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace lk
