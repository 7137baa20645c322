// Ids, bytes and texts of a tokenizer's tokens: the model's vocabulary (found by bytes, without
// allocation) and the added tokens (found by text). Filled by one thread, then read-only and
// thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace lk {

class TokenTable {
 public:
  // A guard against absurd ids in broken files; the largest published vocabularies have a quarter
  // of a million.
  static constexpr int64_t kMaxTokens = int64_t{1} << 22;

  TokenTable();

  // A token of the model's vocabulary, `text` as the file writes it (byte-level alphabet).
  // Errors: kInvalid if the id is out of range or taken, or the text is there already.
  Status add(std::string_view text, int64_t id);
  // An added token; one that the vocabulary holds must have the vocabulary's id. Errors as add().
  Status add_added(std::string_view text, int64_t id, bool special);

  // The vocabulary token that is exactly these bytes, or -1. Added tokens are not found here.
  int32_t find(std::string_view bytes) const {
    const uint32_t hash = hash_bytes(bytes);
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const Slot slot = slots_[i];
      if (slot.id < 0) return -1;
      if (slot.hash == hash && this->bytes(slot.id) == bytes) return slot.id;
    }
  }
  // The token (added, or of the vocabulary) with this text, as the file writes it, or -1.
  int32_t find_text(std::string_view text) const;

  size_t size() const { return tokens_.size(); }  // largest id + 1
  bool has(int64_t id) const {
    return id >= 0 && id < static_cast<int64_t>(size()) && tokens_[id].present;
  }
  bool special(int64_t id) const { return has(id) && tokens_[id].special; }
  // What the token adds to decoded text; empty for an id without a token.
  std::string_view bytes(int64_t id) const {
    if (!has(id)) return {};
    return {arena_.data() + tokens_[id].offset, tokens_[id].length};
  }
  std::string text(int64_t id) const;
  size_t longest() const { return longest_; }  // bytes of the longest vocabulary token

 private:
  struct Token {
    uint32_t offset = 0, length = 0;  // in arena_
    bool present = false;
    bool special = false;
    bool verbatim =
        false;  // has a character outside the byte-level alphabet: its bytes are its UTF-8
  };
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;
  };

  static uint32_t hash_bytes(std::string_view bytes);
  Result<Token*> claim(std::string_view text, int64_t id);
  void grow();

  std::string arena_;
  std::vector<Token> tokens_;  // [size()], by id
  std::vector<Slot> slots_;    // open addressing, at most half full
  size_t mask_ = 0;
  size_t used_ = 0;
  size_t longest_ = 0;
  // Added tokens and vocabulary tokens outside the byte-level alphabet (which no text can produce).
  std::unordered_map<std::string, int32_t> by_text_;
};

}  // namespace lk
