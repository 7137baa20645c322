// Unicode normalization of text before it is cut into words: the steps of tokenizer.json's
// normalizer. A value type; apply() is const and thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lk {

class Normalizer {
 public:
  enum class Step { kNfc, kNfd, kNfkc, kNfkd, kLowercase };
  void add(Step step) { steps_.push_back(step); }

  // `text`: valid UTF-8. Returns `text` itself where nothing changes, otherwise a view of `buffer`.
  // Time is O(n log n) whatever the text (long runs of combining marks included).
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace lk
