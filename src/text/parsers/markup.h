// Formats that write tags into the text (<think>, <tool_call>, <function=f>): a scanner that tells
// tags from text as they stream, and the chain of stages that it feeds. Not thread-safe; one chain
// for each answer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "text/output_parser.h"
#include "text/parsers/writers.h"

namespace lk {

enum class Tag : uint8_t {
  kThink,
  kThinkEnd,
  kCall,
  kCallEnd,
  kFunction,  // "<function=": the name and ">" follow as text
  kFunctionEnd,
  kParameter,  // "<parameter="
  kParameterEnd,
};
inline constexpr std::array<std::string_view, 8> kTagText = {
    "<think>",    "</think>",    "<tool_call>", "</tool_call>",
    "<function=", "</function>", "<parameter=", "</parameter>"};
inline std::string_view tag_text(Tag tag) { return kTagText[static_cast<size_t>(tag)]; }

// A stage. What it does must not depend on how text is cut into pieces; a tag that means nothing
// where it stands is text.
class MarkupStage {
 public:
  virtual ~MarkupStage() = default;
  virtual void text(std::string_view piece) = 0;
  virtual void tag(Tag tag) = 0;
  // The answer has ended. `held`: the beginning of a tag that did not come to its end. `by_model`:
  // it ended with an end-of-turn token, not at a limit.
  virtual void end(std::string_view held, bool by_model) = 0;
};

// Without tool calls: all that arrives is content.
class PlainStage final : public MarkupStage {
 public:
  explicit PlainStage(OutputDelta& out) : out_(out) {}
  void text(std::string_view piece) override { out_.content += piece; }
  void tag(Tag tag) override { out_.content += tag_text(tag); }
  void end(std::string_view held, bool) override { out_.content += held; }

 private:
  OutputDelta& out_;
};

// Finds tags in text that comes in pieces; holds back what may become one. Linear.
class TagScanner {
 public:
  void feed(std::string_view piece, MarkupStage& stage);
  // What is held back at the end.
  std::string take() { return std::exchange(held_, {}); }

 private:
  std::string held_;  // the beginning of a tag
};

// The parser of these formats. set_stages() must be called before push(), with the first of stages
// that write to out().
class MarkupParser final : public OutputParser {
 public:
  explicit MarkupParser(const Tokenizer& tokenizer);
  void set_stages(std::unique_ptr<MarkupStage> first) { first_ = std::move(first); }
  OutputDelta& out() { return out_; }

  OutputDelta push(int32_t token, std::string_view text) override;
  OutputDelta finish() override;

 private:
  const Tokenizer& tokenizer_;
  std::array<int32_t, kTagText.size()> special_ids_;  // of tags that are special tokens, else -2
  OutputDelta out_;
  TagScanner scanner_;
  std::unique_ptr<MarkupStage> first_;
  bool by_model_ = false;  // the last token was special, but no tag
};

}  // namespace lk
