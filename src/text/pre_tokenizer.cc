#include "text/pre_tokenizer.h"

#include <algorithm>
#include <string>

#include "text/utf8_repair.h"

namespace lk {
namespace {

tl::unexpected<Error> too_hard(size_t bytes) {
  return fail(ErrorKind::kResource,
              "the tokenizer's pattern needs too many steps on a text of {} bytes", bytes);
}

}  // namespace

template <typename Take>
bool PreTokenizer::each_piece(const Pattern& pattern, std::string_view text, Take&& take) {
  size_t done = 0;  // everything before is taken
  size_t from = 0;  // where the search goes on
  bool any = false;
  while (from <= text.size()) {
    Pattern::Span match;
    const Pattern::Outcome outcome = pattern.next(text, from, match);
    if (outcome == Pattern::Outcome::kTooHard) return false;
    if (outcome == Pattern::Outcome::kNone) break;
    const bool empty = match.begin == match.end;
    from = match.end;
    if (empty) from += match.end < text.size() ? next_utf8(text, match.end).length : 1;
    // An empty match right after another match is none.
    if (empty && any && match.end == done) continue;
    if (match.begin > done) take(done, match.begin, false);
    take(match.begin, match.end, true);
    done = match.end;
    any = true;
  }
  if (done < text.size()) take(done, text.size(), false);
  return true;
}

Status PreTokenizer::run(size_t index, std::string_view text, WordSink& sink) const {
  if (text.empty()) return {};
  if (index == stages_.size()) {
    sink.word(text);
    return {};
  }
  const Stage& stage = stages_[index];
  if (stage.prefix_space) {
    if (text[0] == ' ') return run(index + 1, text, sink);
    return run(index + 1, std::string(1, ' ').append(text), sink);
  }
  const bool last = index + 1 == stages_.size();
  Status status;
  const auto emit = [&](size_t begin, size_t end) {
    if (begin == end || !status) return;
    if (last)
      sink.word(text.substr(begin, end - begin));
    else
      status = run(index + 1, text.substr(begin, end - begin), sink);
  };
  if (stage.behavior == SplitBehavior::kIsolated || stage.behavior == SplitBehavior::kRemoved) {
    const bool remove = stage.behavior == SplitBehavior::kRemoved;
    const bool done = each_piece(stage.pattern, text, [&](size_t begin, size_t end, bool match) {
      if (!remove || match == stage.invert) emit(begin, end);
    });
    if (!done) return too_hard(text.size());
    return status;
  }
  std::vector<Piece> pieces;
  const bool done = each_piece(stage.pattern, text, [&](size_t begin, size_t end, bool match) {
    pieces.push_back({begin, end, match != stage.invert});
  });
  if (!done) return too_hard(text.size());
  // Merging looks at neighbours in one direction; kMergedWithNext is kMergedWithPrevious from the
  // right.
  const bool reversed = stage.behavior == SplitBehavior::kMergedWithNext;
  if (reversed) std::reverse(pieces.begin(), pieces.end());
  std::vector<Piece> merged;
  bool previous = false;
  for (const Piece& piece : pieces) {
    const bool join = stage.behavior == SplitBehavior::kContiguous ? piece.match == previous
                                                                   : piece.match && !previous;
    previous = piece.match;
    if (join && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, piece.begin);
      merged.back().end = std::max(merged.back().end, piece.end);
    } else {
      merged.push_back(piece);
    }
  }
  if (reversed) std::reverse(merged.begin(), merged.end());
  for (const Piece& piece : merged) emit(piece.begin, piece.end);
  return status;
}

}  // namespace lk
