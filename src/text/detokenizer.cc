#include "text/detokenizer.h"

#include <algorithm>

#include "text/utf8_repair.h"

namespace lk {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  held_ += tokenizer_->token_bytes(id);
  // Only a character that begins in the last three bytes can be incomplete; an earlier lead byte
  // either has all its bytes or is ill-formed whatever follows.
  size_t end = held_.size();
  for (size_t back = 1; back <= std::min<size_t>(3, held_.size()); ++back) {
    const size_t pos = held_.size() - back;
    if ((static_cast<uint8_t>(held_[pos]) & 0xC0) == 0x80) continue;
    const Utf8Step step = next_utf8(held_, pos);
    if (step.incomplete && step.length == back) end = pos;
    break;
  }
  std::string text;
  append_repaired(text, std::string_view(held_).substr(0, end));
  held_.erase(0, end);
  return text;
}

std::string Detokenizer::flush() {
  std::string text;
  append_repaired(text, held_);
  held_.clear();
  return text;
}

}  // namespace lk
