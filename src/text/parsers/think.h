// Reasoning between <think> and </think>, in front of the answer.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/parsers/markup.h"

namespace lk {

struct ThinkOptions {
  // The answer begins as reasoning where the prompt says nothing of it.
  bool assume_open = false;
  // What follows <tool_call> in the tools' format, if calls are parsed: '{', or '<' for
  // <function=. A call ends reasoning that was not closed. 0: none.
  char call_begins = 0;
  std::string_view prompt_tail;
};

// Reasoning goes to `out`, the rest to `next`. Newlines around the reasoning belong to the format
// and are left out. Reasoning that is never closed stays reasoning. Without an opening tag (in the
// prompt, or first in the answer) everything is content, unless assume_open.
std::unique_ptr<MarkupStage> make_think_stage(const ThinkOptions& options, OutputDelta& out,
                                              std::unique_ptr<MarkupStage> next);

}  // namespace lk
