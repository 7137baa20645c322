#include "text/output_parser.h"

#include <algorithm>
#include <array>
#include <span>

#include "text/parsers/harmony.h"
#include "text/parsers/hermes.h"
#include "text/parsers/markup.h"
#include "text/parsers/qwen_xml.h"
#include "text/parsers/think.h"

namespace lk {
namespace {

// Reasoning between tags. Which of these formats a model has, its prompt mostly says
// (think.h); they differ where it does not.
struct ThinkFormat {
  std::string_view name;
  bool assume_open;
};
constexpr std::array<ThinkFormat, 3> kThinkFormats = {{
    {"qwen3", false},
    {"deepseek_r1", true},
    {"nemotron_v3", true},
}};

std::unique_ptr<MarkupStage> hermes(OutputDelta& out, const OrderedJson*) {
  return make_hermes_stage(out);
}
std::unique_ptr<MarkupStage> qwen_xml(OutputDelta& out, const OrderedJson* tools) {
  return make_qwen_xml_stage(out, ToolTypes(tools));
}

// Tool calls between tags.
struct CallFormat {
  std::string_view name;
  std::unique_ptr<MarkupStage> (*make)(OutputDelta& out, const OrderedJson* tools);
  char begins;  // what follows <tool_call>
};
constexpr std::array<CallFormat, 3> kCallFormats = {{
    {"hermes", hermes, '{'},
    {"qwen3_coder", qwen_xml, '<'},
    {"qwen3_xml", qwen_xml, '<'},
}};

// One format has its own grammar for both.
constexpr std::string_view kHarmonyReasoning = "openai_gptoss";
constexpr std::string_view kHarmonyTools = "openai";

// The marks by which a template tells its format; the first row whose marks it has all.
struct TemplateMarks {
  std::array<std::string_view, 2> marks;
  std::string_view name;
};
constexpr std::array<TemplateMarks, 4> kReasoningMarks = {{
    {{"<|channel|>", "<|message|>"}, kHarmonyReasoning},
    {{"<think>", "truncate_history_thinking"}, "nemotron_v3"},
    {{"</think>", "<｜Assistant｜>"}, "deepseek_r1"},
    {{"<think>", "</think>"}, "qwen3"},
}};
constexpr std::array<TemplateMarks, 3> kToolMarks = {{
    {{"<|channel|>", "<|message|>"}, kHarmonyTools},
    {{"<tool_call>", "<function="}, "qwen3_coder"},
    {{"<tool_call>", "arguments"}, "hermes"},
}};

std::string first_match(std::span<const TemplateMarks> rows, std::string_view source) {
  for (const TemplateMarks& row : rows) {
    if (std::all_of(row.marks.begin(), row.marks.end(), [&](std::string_view mark) {
          return source.find(mark) != std::string_view::npos;
        })) {
      return std::string(row.name);
    }
  }
  return {};
}

template <typename Rows>
auto find_row(const Rows& rows, std::string_view name) {
  return std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.name == name; });
}

template <typename Rows>
std::vector<std::string> names(std::string_view first, const Rows& rows) {
  std::vector<std::string> result = {std::string(first)};
  for (const auto& row : rows) result.emplace_back(row.name);
  return result;
}

Status check_name(std::string_view what, std::string_view name,
                  const std::vector<std::string>& known) {
  if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) return {};
  std::string list;
  for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
  return invalid("there is no {} parser \"{}\" (known: {})", what, name, list);
}

}  // namespace

std::vector<std::string> reasoning_parser_names() {
  return names(kHarmonyReasoning, kThinkFormats);
}

std::vector<std::string> tool_parser_names() { return names(kHarmonyTools, kCallFormats); }

ParserChoice detect_output_parsers(std::string_view template_source) {
  return {first_match(kReasoningMarks, template_source), first_match(kToolMarks, template_source)};
}

Result<std::unique_ptr<OutputParser>> make_output_parser(const OutputParserOptions& options,
                                                         const Tokenizer& tokenizer) {
  LK_RETURN_IF_ERROR(check_name("reasoning", options.reasoning, reasoning_parser_names()));
  LK_RETURN_IF_ERROR(check_name("tool call", options.tools, tool_parser_names()));
  const bool harmony_reasoning = options.reasoning == kHarmonyReasoning;
  const bool harmony_tools = options.tools == kHarmonyTools;
  if ((harmony_reasoning && !harmony_tools && !options.tools.empty()) ||
      (harmony_tools && !harmony_reasoning && !options.reasoning.empty())) {
    return invalid("the reasoning parser \"{}\" does not go with the tool call parser \"{}\"",
                   options.reasoning, options.tools);
  }
  if (harmony_reasoning || harmony_tools) return make_harmony_parser(options, tokenizer);

  auto parser = std::make_unique<MarkupParser>(tokenizer);
  const auto calls = find_row(kCallFormats, options.tools);
  std::unique_ptr<MarkupStage> stage;
  ThinkOptions think{.prompt_tail = options.prompt_tail};
  if (calls != kCallFormats.end()) {
    stage = calls->make(parser->out(), options.tool_specs);
    think.call_begins = calls->begins;
  } else {
    stage = std::make_unique<PlainStage>(parser->out());
  }
  if (const auto row = find_row(kThinkFormats, options.reasoning); row != kThinkFormats.end()) {
    think.assume_open = row->assume_open;
    stage = make_think_stage(think, parser->out(), std::move(stage));
  }
  parser->set_stages(std::move(stage));
  return parser;
}

}  // namespace lk
