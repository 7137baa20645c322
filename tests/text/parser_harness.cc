#include "tests/text/parser_harness.h"

#include <gtest/gtest.h>

#include "tests/text/tokenizer_golden.h"
#include "text/detokenizer.h"

namespace lk {
namespace {

std::unique_ptr<OutputParser> make_parser(const OutputParserOptions& options,
                                          const Tokenizer& tokenizer) {
  auto parser = make_output_parser(options, tokenizer);
  EXPECT_TRUE(parser) << (parser ? "" : parser.error().message);
  return std::move(*parser);
}

}  // namespace

void PrintTo(const ParsedOutput& parsed, std::ostream* out) {
  *out << "reasoning: " << testing::PrintToString(parsed.reasoning)
       << "\n  content: " << testing::PrintToString(parsed.content)
       << "\n  calls: " << testing::PrintToString(parsed.calls);
}

std::shared_ptr<const Tokenizer> marker_tokenizer() {
  return shared_tokenizer("models/tiny-gpt-oss-mxfp4/tokenizer.json");
}

void add_delta(ParsedOutput& parsed, const OutputDelta& delta) {
  parsed.reasoning += delta.reasoning;
  parsed.content += delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (!call.name.empty()) {
      EXPECT_EQ(call.index, static_cast<int>(parsed.calls.size()));
      EXPECT_EQ(call.arguments, "");
      parsed.calls.emplace_back(call.name, "");
    } else {
      ASSERT_EQ(call.index, static_cast<int>(parsed.calls.size()) - 1);
      EXPECT_NE(call.arguments, "");
      parsed.calls.back().second += call.arguments;
    }
  }
}

ParsedOutput parse_output(const OutputParserOptions& options, std::string_view output,
                          std::mt19937* random) {
  const auto tokenizer = marker_tokenizer();
  const auto parser = make_parser(options, *tokenizer);
  ParsedOutput parsed;
  for (size_t pos = 0; pos < output.size();) {
    size_t marker = pos, end = std::string_view::npos;
    int32_t id = -1;  // of the special token that ends the text
    while ((marker = output.find("<|", marker)) != std::string_view::npos) {
      end = output.find("|>", marker);
      if (end == std::string_view::npos) break;
      id = tokenizer->token_to_id(output.substr(marker, end + 2 - marker)).value_or(-1);
      if (tokenizer->is_special(id)) break;
      id = -1;
      ++marker;
    }
    std::string_view text = output.substr(pos, id >= 0 ? marker - pos : std::string_view::npos);
    pos = id >= 0 ? end + 2 : output.size();
    // The last piece may come with the token that follows.
    while (random != nullptr && !text.empty()) {
      const size_t cut = 1 + (*random)() % std::min<size_t>(text.size(), 1 + (*random)() % 24);
      if (id >= 0 && cut == text.size() && (*random)() % 2 == 0) break;
      add_delta(parsed, parser->push(-1, text.substr(0, cut)));
      text.remove_prefix(cut);
    }
    if (id >= 0 || !text.empty()) add_delta(parsed, parser->push(id, text));
  }
  add_delta(parsed, parser->finish());
  return parsed;
}

ParsedOutput parse_tokens(const OutputParserOptions& options, const std::vector<int32_t>& ids,
                          std::shared_ptr<const Tokenizer> tokenizer) {
  const auto parser = make_parser(options, *tokenizer);
  ParsedOutput parsed;
  Detokenizer detokenizer(tokenizer);
  for (const int32_t id : ids) add_delta(parsed, parser->push(id, detokenizer.push(id)));
  add_delta(parsed, parser->push(-1, detokenizer.flush()));
  add_delta(parsed, parser->finish());
  return parsed;
}

}  // namespace lk
