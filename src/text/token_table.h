// Ids, bytes and texts of a tokenizer's tokens: the model's vocabulary (found by bytes, without
// allocation) and the added tokens (found by text). Filled by one thread, then read-only and
// thread-safe.
#pragma once

#include <cstdint>
#include <cstring>
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
  int32_t find(std::string_view bytes) const { return find(bytes, hash_bytes(bytes)); }

  // The same in steps, for a caller with many look-ups at hand: prefetch(hash) for all, then
  // prefetch_bytes(hash) for all, then find(bytes, hash).
  static uint64_t hash_bytes(std::string_view bytes);
  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }
  void prefetch_bytes(uint64_t hash) const {
    const Slot& slot = slots_[hash & mask_];
    if (slot.length > kHead) __builtin_prefetch(arena_.data() + slot.offset);
  }
  int32_t find(std::string_view bytes, uint64_t hash) const {
    const uint64_t head = head_of(bytes);
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.id < 0) return -1;
      if (slot.head == head && slot.length == bytes.size() &&
          (bytes.size() <= kHead ||
           std::memcmp(arena_.data() + slot.offset, bytes.data(), bytes.size()) == 0)) {
        return slot.id;
      }
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
  static constexpr size_t kHead = 8;
  struct Slot {
    uint64_t head =
        0;  // head_of the bytes: with the length, all there is to a token of up to kHead bytes
    int32_t id = -1;
    uint32_t length = 0;
    uint32_t offset = 0;  // in arena_
    uint32_t hash = 0;    // lower half
  };

  // The first kHead bytes, or all of a shorter string in a form that is unique for its length.
  static uint64_t head_of(std::string_view bytes) {
    const char* p = bytes.data();
    const size_t n = bytes.size();
    if (n >= kHead) return load<uint64_t>(p);
    if (n >= 4) return uint64_t{load<uint32_t>(p)} << 32 | load<uint32_t>(p + n - 4);
    if (n == 0) return 0;
    const auto byte = [&](size_t i) { return uint64_t{static_cast<uint8_t>(p[i])}; };
    return byte(0) << 16 | byte(n / 2) << 8 | byte(n - 1);
  }
  template <typename T>
  static T load(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  Result<Token*> claim(std::string_view text, int64_t id);
  void insert(const Slot& slot);
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
