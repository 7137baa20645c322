// Finds added tokens in text: leftmost, then longest, with Hugging Face's options for the
// neighbourhood. A value type; filled by one thread, then read-only and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lk {

struct AddedToken {
  std::string text;
  int32_t id = 0;
  bool special = false;
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the white space on its left
  bool rstrip = false;       // takes the white space on its right
};

class AddedTokens {
 public:
  void add(AddedToken token) { tokens_.push_back(std::move(token)); }
  void finish();  // call once, after the last add()
  bool empty() const { return tokens_.empty(); }

  struct Match {
    size_t begin, end;
    int32_t id;
  };
  // The first match at or after `from`. Tokens with `special` are passed over where `parse_special`
  // is false (the text they cover stays text, as Hugging Face's encode_special_tokens does it).
  // `from` is also where the previous match ended. False if there is none.
  bool next(std::string_view text, size_t from, bool parse_special, Match& match) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t pos) const;

  std::vector<AddedToken> tokens_;  // sorted by text
  bool first_byte_[256] = {};
  int only_first_byte_ = -1;  // if all tokens begin with the same byte
};

}  // namespace lk
