// Cuts normalized text into the words that BPE encodes: the stages of tokenizer.json's
// pre_tokenizer. Owns its patterns; split() is const and thread-safe.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/pattern.h"

namespace lk {

// What becomes of the delimiters (matches) of a Split, as Hugging Face names it.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

class PreTokenizer {
 public:
  struct WordSink {
    virtual void word(std::string_view bytes) = 0;  // never empty

   protected:
    ~WordSink() = default;
  };

  void add_split(Pattern pattern, SplitBehavior behavior, bool invert) {
    stages_.push_back({false, std::move(pattern), behavior, invert});
  }
  // Each piece that does not begin with a space gets one.
  void add_prefix_space() { stages_.push_back({true, {}, SplitBehavior::kIsolated, false}); }

  size_t stages() const { return stages_.size(); }

  // `text`: valid UTF-8. Gives the words in order. Errors: kResource if a pattern needs too many
  // steps.
  Status split(std::string_view text, WordSink& sink) const { return run(0, text, sink); }

 private:
  struct Stage {
    bool prefix_space;
    Pattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct Piece {
    size_t begin, end;
    bool match;
  };

  Status run(size_t stage, std::string_view text, WordSink& sink) const;
  // Calls `take(begin, end, is_match)` for each match and each gap, in order; false if the pattern
  // is too hard.
  template <typename Take>
  static bool each_piece(const Pattern& pattern, std::string_view text, Take&& take);

  std::vector<Stage> stages_;
};

}  // namespace lk
