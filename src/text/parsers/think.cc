#include "text/parsers/think.h"

#include <utility>

namespace lk {
namespace {

enum class Opening { kNone, kOpen, kClosed };

// Whether the prompt's last turn opens reasoning, or opens and closes it. A tag that stands in an
// earlier turn is followed by the markers that end it.
Opening opening_of(std::string_view tail) {
  const size_t open = tail.rfind(tag_text(Tag::kThink));
  const size_t close = tail.rfind(tag_text(Tag::kThinkEnd));
  const bool closed =
      close != std::string_view::npos && (open == std::string_view::npos || open < close);
  const size_t at = closed ? close : open;
  if (at == std::string_view::npos) return Opening::kNone;
  for (std::string_view marker : {"<|", "<｜", "[/INST]", "<start_of_turn>"}) {
    if (tail.find(marker, at) != std::string_view::npos) return Opening::kNone;
  }
  return closed ? Opening::kClosed : Opening::kOpen;
}

class ThinkStage final : public MarkupStage {
 public:
  ThinkStage(const ThinkOptions& options, OutputDelta& out, std::unique_ptr<MarkupStage> next)
      : call_begins_(options.call_begins), out_(out), next_(std::move(next)) {
    const Opening opening = opening_of(options.prompt_tail);
    if (opening == Opening::kOpen || (opening == Opening::kNone && options.assume_open)) {
      state_ = State::kReasoning;
    }
  }

  void text(std::string_view piece) override {
    switch (state_) {
      case State::kBegin: {
        held_ += piece;
        if (piece.find_first_not_of(kWhitespace) != std::string_view::npos) begin_content();
        break;
      }
      case State::kReasoning:
        reason(piece);
        break;
      case State::kMaybeCall: {
        const size_t first = piece.find_first_not_of(kWhitespace);
        held_ += piece.substr(0, first);
        if (first == std::string_view::npos) break;
        if (piece[first] == call_begins_) {
          begin_call();
        } else {
          no_call();
        }
        text(piece.substr(first));
        break;
      }
      case State::kEnded:
        piece.remove_prefix(std::min(piece.find_first_not_of('\n'), piece.size()));
        if (piece.empty()) break;
        state_ = State::kContent;
        [[fallthrough]];
      case State::kContent:
        next_->text(piece);
        break;
    }
  }

  void tag(Tag tag) override {
    switch (state_) {
      case State::kBegin:
        if (tag == Tag::kThink) {
          held_.clear();
          state_ = State::kReasoning;
          return;
        }
        begin_content();
        break;
      case State::kMaybeCall:
        if (tag == Tag::kFunction && call_begins_ == '<') {
          begin_call();
          break;
        }
        no_call();
        [[fallthrough]];
      case State::kReasoning:
        if (tag == Tag::kThinkEnd) {
          held_.clear();
          state_ = State::kEnded;
        } else if (tag == Tag::kCall && call_begins_ != 0) {
          held_newlines_ = std::exchange(held_, {});
          state_ = State::kMaybeCall;
        } else if (tag != Tag::kThink || reasoned_) {
          reason(tag_text(tag));
        }
        return;
      case State::kEnded:
        state_ = State::kContent;
        break;
      case State::kContent:
        break;
    }
    if (tag == Tag::kThink || tag == Tag::kThinkEnd) {
      next_->text(tag_text(tag));
    } else {
      next_->tag(tag);
    }
  }

  void end(std::string_view held, bool by_model) override {
    if (state_ == State::kBegin) begin_content();
    if (state_ == State::kMaybeCall) no_call();
    if (state_ == State::kReasoning) reason(std::exchange(held, {}));
    next_->end(held, by_model);
  }

 private:
  enum class State { kBegin, kReasoning, kMaybeCall, kEnded, kContent };

  void reason(std::string_view piece) {
    if (!reasoned_) piece.remove_prefix(std::min(piece.find_first_not_of('\n'), piece.size()));
    if (piece.empty()) return;
    reasoned_ = true;
    const size_t last = piece.find_last_not_of('\n');
    if (last == std::string_view::npos) {
      held_ += piece;
      return;
    }
    out_.reasoning += std::exchange(held_, std::string(piece.substr(last + 1)));
    out_.reasoning += piece.substr(0, last + 1);
  }

  void begin_content() {
    state_ = State::kContent;
    if (!held_.empty()) next_->text(std::exchange(held_, {}));
  }

  void begin_call() {
    state_ = State::kContent;
    next_->tag(Tag::kCall);
    if (!held_.empty()) next_->text(std::exchange(held_, {}));
  }

  void no_call() {
    state_ = State::kReasoning;
    const std::string after = std::exchange(held_, std::exchange(held_newlines_, {}));
    reason(tag_text(Tag::kCall));
    reason(after);
  }

  const char call_begins_;
  OutputDelta& out_;
  std::unique_ptr<MarkupStage> next_;
  State state_ = State::kBegin;
  // kBegin: white space. kReasoning: newlines that may be its last. kMaybeCall: white space behind
  // <tool_call>, and held_newlines_ what held_ was before it.
  std::string held_, held_newlines_;
  bool reasoned_ = false;
};

}  // namespace

std::unique_ptr<MarkupStage> make_think_stage(const ThinkOptions& options, OutputDelta& out,
                                              std::unique_ptr<MarkupStage> next) {
  return std::make_unique<ThinkStage>(options, out, std::move(next));
}

}  // namespace lk
