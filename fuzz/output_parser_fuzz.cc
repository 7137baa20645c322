// The first byte chooses the formats, the second how the text is cut; the rest is the output, with
// bytes from 0xF8 on standing for special tokens. Cut or whole, it must come to the same.
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "text/byte_level.h"
#include "text/output_parser.h"

namespace {

constexpr std::array<const char*, 8> kSpecial = {"<|start|>",     "<|channel|>", "<|message|>",
                                                 "<|constrain|>", "<|end|>",     "<|return|>",
                                                 "<|call|>",      "<think>"};

std::shared_ptr<const lk::Tokenizer> make_tokenizer() {
  lk::Json vocab = lk::Json::object(), added = lk::Json::array();
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    vocab[lk::byte_level_text({&byte, 1})] = b;
  }
  for (size_t i = 0; i < kSpecial.size(); ++i) {
    added.push_back(
        {{"id", 256 + i}, {"content", kSpecial[i]}, {"special", true}, {"normalized", false}});
  }
  const lk::Json json = {
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", lk::Json::array()}}}};
  auto tokenizer = lk::Tokenizer::parse(json.dump(), "tokenizer.json");
  if (!tokenizer) std::abort();
  return *tokenizer;
}

void add(lk::OutputDelta& all, const lk::OutputDelta& delta) {
  all.reasoning += delta.reasoning;
  all.content += delta.content;
  for (const lk::ToolCallDelta& call : delta.tool_calls) {
    if (!call.name.empty()) {
      if (call.index != static_cast<int>(all.tool_calls.size())) std::abort();
      all.tool_calls.push_back(call);
    } else {
      if (call.index + 1 != static_cast<int>(all.tool_calls.size())) std::abort();
      all.tool_calls.back().arguments += call.arguments;
    }
  }
}

lk::OutputDelta parse(const lk::OutputParserOptions& options, const lk::Tokenizer& tokenizer,
                      std::string_view output, size_t cut) {
  auto parser = lk::make_output_parser(options, tokenizer);
  if (!parser) std::abort();
  lk::OutputDelta all;
  std::string text;
  for (const char c : output) {
    const int special = static_cast<uint8_t>(c) - 0xF8;
    if (special >= 0) {
      // Text that ends like the token would be taken for the token's own.
      if (text.ends_with(kSpecial[special])) {
        add(all, (*parser)->push(-1, text));
        text.clear();
      }
      add(all, (*parser)->push(256 + special, text));
      text.clear();
      continue;
    }
    text += c;
    if (text.size() == cut) {
      add(all, (*parser)->push(-1, text));
      text.clear();
    }
  }
  if (!text.empty()) add(all, (*parser)->push(-1, text));
  add(all, (*parser)->finish());
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokenizer = make_tokenizer();
  static const lk::OrderedJson tools = lk::OrderedJson::parse(
      R"([{"type":"function","function":{"name":"f","parameters":{"properties":{
          "x":{"type":"integer"},"y":{"type":["object","string"]}}}}}])");
  if (size < 2) return 0;
  const size_t format = data[0] % 16;
  lk::OutputParserOptions options{.tool_specs = &tools};
  if (format >= 12) {
    options.reasoning = "openai_gptoss";
    options.tools = "openai";
    if (format % 2) options.prompt_tail = "<|start|>assistant<|channel|>final<|message|>";
  } else {
    options.reasoning = std::array{"", "qwen3", "deepseek_r1"}[format % 3];
    options.tools = format / 3 % 2 ? "hermes" : "qwen3_xml";
    if (format >= 6) options.prompt_tail = "<think>\n";
  }
  const std::string_view output(reinterpret_cast<const char*>(data) + 2, size - 2);
  const lk::OutputDelta whole = parse(options, *tokenizer, output, size);
  const lk::OutputDelta cut = parse(options, *tokenizer, output, 1 + data[1] % 16);
  if (whole.reasoning != cut.reasoning || whole.content != cut.content ||
      whole.tool_calls.size() != cut.tool_calls.size()) {
    std::abort();
  }
  for (size_t i = 0; i < whole.tool_calls.size(); ++i) {
    if (whole.tool_calls[i].name != cut.tool_calls[i].name ||
        whole.tool_calls[i].arguments != cut.tool_calls[i].arguments) {
      std::abort();
    }
  }
  return 0;
}
