#include "text/parsers/markup.h"

#include <utility>

namespace lk {

void TagScanner::feed(std::string_view piece, MarkupStage& stage) {
  while (!piece.empty()) {
    if (held_.empty()) {
      const size_t open = std::min(piece.find('<'), piece.size());
      if (open > 0) stage.text(piece.substr(0, open));
      if (open == piece.size()) return;
      held_ = '<';
      piece.remove_prefix(open + 1);
      continue;
    }
    // No tag has a second '<': where a tag fails, another can begin only at the character at hand.
    const std::string longer = held_ + piece.front();
    bool begins = false;
    for (size_t t = 0; t < kTagText.size(); ++t) {
      if (!kTagText[t].starts_with(longer)) continue;
      begins = true;
      if (kTagText[t].size() != longer.size()) continue;
      held_.clear();
      piece.remove_prefix(1);
      stage.tag(static_cast<Tag>(t));
      break;
    }
    if (!begins) {
      stage.text(std::exchange(held_, {}));
    } else if (!held_.empty()) {
      held_ = longer;
      piece.remove_prefix(1);
    }
  }
}

MarkupParser::MarkupParser(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  for (size_t t = 0; t < kTagText.size(); ++t) {
    const auto id = tokenizer.token_to_id(kTagText[t]);
    special_ids_[t] = id && tokenizer.is_special(*id) ? *id : -2;
  }
}

OutputDelta MarkupParser::push(int32_t token, std::string_view text) {
  by_model_ = token >= 0 && tokenizer_.is_special(token);
  scanner_.feed(text, *first_);
  for (size_t t = 0; t < kTagText.size(); ++t) {
    if (special_ids_[t] != token) continue;
    by_model_ = false;
    if (!text.ends_with(kTagText[t])) scanner_.feed(kTagText[t], *first_);
  }
  return std::exchange(out_, {});
}

OutputDelta MarkupParser::finish() {
  first_->end(scanner_.take(), by_model_);
  return std::exchange(out_, {});
}

}  // namespace lk
