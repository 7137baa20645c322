// Byte-pair encoding of one word (pre-token) with a merge list, in O(n log n). Filled by one
// thread, then encode() is thread-safe (its one cache is atomic). Does not own the token table,
// which must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/token_table.h"

namespace lk {

class Bpe {
 public:
  explicit Bpe(const TokenTable& tokens)
      : tokens_(tokens), slots_(kFirstSlots), mask_(kFirstSlots - 1) {}

  // The next merge by rank; texts as the file writes them. Of a pair listed twice the last rank
  // counts. Errors: kInvalid if a part or the joined text is not in the vocabulary.
  Status add_merge(std::string_view left, std::string_view right);

  // Call once, when vocabulary and merges are complete. `ignore_merges`: a word that is a token is
  // taken whole. Errors: kInvalid if a byte that UTF-8 text can contain has no token.
  Status finish(bool ignore_merges);

  // Appends the ids of a word (bytes of any length below 4 GiB).
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  static constexpr size_t kFirstSlots = size_t{1} << 12;
  static constexpr uint64_t kNone = ~uint64_t{0};

  // key: left id << 32 | right id. value: rank << 32 | joined id, so that comparing values compares
  // ranks.
  struct Slot {
    uint64_t key = kNone;
    uint64_t value = kNone;
  };
  static size_t hash(uint64_t key) { return (key * 0x9E3779B97F4A7C15u) >> 32; }
  uint64_t merge_of(uint32_t left, uint32_t right) const {
    const uint64_t key = uint64_t{left} << 32 | right;
    for (size_t i = hash(key) & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].value;
      if (slots_[i].key == kNone) return kNone;
    }
  }
  // A merge on its way into the table. The vocabulary is larger than the nearer caches, so that a
  // look-up costs a memory access or two; in batches these overlap (half the time to load a
  // tokenizer of 446,000 merges).
  static constexpr size_t kBatch = 64;
  struct Pending {
    std::string_view left, right;           // as the file writes them
    size_t begin = 0, middle = 0, end = 0;  // their bytes in pending_bytes_
    bool byte_level = false;                // if they are of the byte-level alphabet
    uint64_t hashes[3] = {};                // of left, right, joined
    uint64_t key = kNone, value = kNone;
  };
  Status flush_merges();
  void insert(uint64_t key, uint64_t value);
  void grow();
  void merge_short(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view word, std::vector<int32_t>& ids) const;

  const TokenTable& tokens_;
  std::vector<Slot> slots_;  // open addressing, at most half full
  size_t mask_;
  size_t used_ = 0;
  uint32_t merges_ = 0;
  std::vector<Pending> pending_;
  std::string pending_bytes_;
  bool ignore_merges_ = false;
  uint32_t byte_ids_[256] = {};
  // By token: do its bytes, merged, give the token itself? Found out when first met.
  enum Whole : uint8_t { kUnknown, kYes, kNo };
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace lk
