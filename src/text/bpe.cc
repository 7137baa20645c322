#include "text/bpe.h"

#include <algorithm>
#include <functional>

#include "text/byte_level.h"

namespace lk {
namespace {

// Up to here a scan for the lowest rank beats the heap.
constexpr size_t kShort = 40;

// A heap, or a linked list of symbols, kept by a thread beyond this many entries is given back.
constexpr size_t kKeep = size_t{1} << 16;

struct Symbol {
  uint32_t id;
  uint32_t prev, next;  // kEnd: none
  uint64_t merge;       // with the next symbol
};
constexpr uint32_t kEnd = ~uint32_t{0};

}  // namespace

Status Bpe::add_merge(std::string_view left, std::string_view right) {
  Pending merge;
  merge.left = left;
  merge.right = right;
  merge.begin = pending_bytes_.size();
  merge.byte_level = append_byte_level(pending_bytes_, left);
  merge.middle = pending_bytes_.size();
  merge.byte_level = merge.byte_level && append_byte_level(pending_bytes_, right);
  merge.end = pending_bytes_.size();
  if (merge.byte_level) {
    const std::string_view joined = std::string_view(pending_bytes_).substr(merge.begin);
    const size_t middle = merge.middle - merge.begin;
    const std::string_view parts[] = {joined.substr(0, middle), joined.substr(middle), joined};
    for (int i = 0; i < 3; ++i) {
      merge.hashes[i] = TokenTable::hash_bytes(parts[i]);
      tokens_.prefetch(merge.hashes[i]);
    }
  }
  pending_.push_back(merge);
  return pending_.size() == kBatch ? flush_merges() : Status();
}

Status Bpe::flush_merges() {
  for (const Pending& merge : pending_) {
    if (!merge.byte_level) continue;
    for (const uint64_t hash : merge.hashes) tokens_.prefetch_bytes(hash);
  }
  for (Pending& merge : pending_) {
    const std::string_view left = merge.left, right = merge.right;
    int32_t left_id, right_id, joined_id;
    if (merge.byte_level) {
      const std::string_view joined(pending_bytes_.data() + merge.begin, merge.end - merge.begin);
      const size_t middle = merge.middle - merge.begin;
      left_id = tokens_.find(joined.substr(0, middle), merge.hashes[0]);
      right_id = tokens_.find(joined.substr(middle), merge.hashes[1]);
      joined_id = tokens_.find(joined, merge.hashes[2]);
    } else {
      left_id = tokens_.find_text(left);
      right_id = tokens_.find_text(right);
      joined_id = tokens_.find_text(std::string(left).append(right));
    }
    const uint32_t rank = merges_++;
    if (left_id < 0 || right_id < 0) {
      return invalid("merge {} joins '{}' and '{}', but '{}' is not in the vocab", rank, left,
                     right, left_id < 0 ? left : right);
    }
    if (joined_id < 0)
      return invalid("merge {} makes '{}{}', which is not in the vocab", rank, left, right);
    merge.key = uint64_t{static_cast<uint32_t>(left_id)} << 32 | static_cast<uint32_t>(right_id);
    merge.value = uint64_t{rank} << 32 | static_cast<uint32_t>(joined_id);
    __builtin_prefetch(&slots_[hash(merge.key) & mask_], 1);
  }
  for (const Pending& merge : pending_) insert(merge.key, merge.value);
  pending_.clear();
  pending_bytes_.clear();
  return {};
}

void Bpe::insert(uint64_t key, uint64_t value) {
  if ((used_ + 1) * 2 > slots_.size()) grow();
  size_t i = hash(key) & mask_;
  while (slots_[i].key != key && slots_[i].key != kNone) i = (i + 1) & mask_;
  if (slots_[i].key == kNone) ++used_;
  slots_[i] = {key, value};
}

void Bpe::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  used_ = 0;
  for (const Slot& slot : old) {
    if (slot.key != kNone) insert(slot.key, slot.value);
  }
}

Status Bpe::finish(bool ignore_merges) {
  LK_RETURN_IF_ERROR(flush_merges());
  pending_ = {};
  pending_bytes_ = {};
  ignore_merges_ = ignore_merges;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const int32_t id = tokens_.find({&byte, 1});
    const bool in_utf8 = b < 0xF5 && b != 0xC0 && b != 0xC1;
    if (id < 0 && in_utf8) {
      return invalid("the vocab has no token '{}' for the byte 0x{:02x}",
                     byte_level_text({&byte, 1}), b);
    }
    byte_ids_[b] = static_cast<uint32_t>(std::max(id, 0));
  }
  if (!ignore_merges) whole_ = std::make_unique<std::atomic<uint8_t>[]>(tokens_.size());
  return {};
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  const int32_t token = word.size() <= tokens_.longest() ? tokens_.find(word) : -1;
  uint8_t whole = kNo;
  if (token >= 0)
    whole = ignore_merges_ ? uint8_t{kYes} : whole_[token].load(std::memory_order_relaxed);
  if (whole == kYes) {
    ids.push_back(token);
    return;
  }
  const size_t before = ids.size();
  if (word.size() <= kShort)
    merge_short(word, ids);
  else
    merge_long(word, ids);
  if (whole == kUnknown) {
    const bool same = ids.size() == before + 1 && ids.back() == token;
    whole_[token].store(same ? kYes : kNo, std::memory_order_relaxed);
  }
}

void Bpe::merge_short(std::string_view word, std::vector<int32_t>& ids) const {
  uint32_t symbols[kShort];
  uint64_t merges[kShort];  // merges[i]: of symbols i and i + 1
  size_t n = word.size();
  for (size_t i = 0; i < n; ++i) symbols[i] = byte_ids_[static_cast<uint8_t>(word[i])];
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = merge_of(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i] < merges[best]) best = i;  // of equal ranks the leftmost
    }
    if (merges[best] == kNone) break;
    symbols[best] = static_cast<uint32_t>(merges[best]);
    std::copy(symbols + best + 2, symbols + n, symbols + best + 1);
    if (best + 2 < n) std::copy(merges + best + 2, merges + n - 1, merges + best + 1);
    --n;
    if (best > 0) merges[best - 1] = merge_of(symbols[best - 1], symbols[best]);
    if (best + 1 < n) merges[best] = merge_of(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + n);
}

void Bpe::merge_long(std::string_view word, std::vector<int32_t>& ids) const {
  thread_local std::vector<Symbol> symbols;
  thread_local std::vector<uint64_t> heap;  // rank << 32 | position of the left symbol
  const auto n = static_cast<uint32_t>(word.size());
  const auto entry = [&](uint32_t i) { return (symbols[i].merge >> 32) << 32 | i; };
  symbols.resize(n);
  heap.clear();
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t id = byte_ids_[static_cast<uint8_t>(word[i])];
    symbols[i] = {id, i == 0 ? kEnd : i - 1, i + 1 == n ? kEnd : i + 1, kNone};
    if (i == 0) continue;
    symbols[i - 1].merge = merge_of(symbols[i - 1].id, id);
    if (symbols[i - 1].merge != kNone) heap.push_back(entry(i - 1));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update = [&](uint32_t i) {
    Symbol& symbol = symbols[i];
    symbol.merge = symbol.next == kEnd ? kNone : merge_of(symbol.id, symbols[symbol.next].id);
    if (symbol.merge == kNone) return;
    heap.push_back(entry(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<uint32_t>(top);
    Symbol& symbol = symbols[i];
    // An entry is stale if its symbol was merged away or has a new neighbour since.
    if (symbol.merge == kNone || entry(i) != top) continue;
    symbol.id = static_cast<uint32_t>(symbol.merge);
    Symbol& right = symbols[symbol.next];
    right.merge = kNone;
    symbol.next = right.next;
    if (symbol.next != kEnd) symbols[symbol.next].prev = i;
    update(i);
    if (symbol.prev != kEnd) update(symbol.prev);
  }
  for (uint32_t i = 0; i != kEnd; i = symbols[i].next)
    ids.push_back(static_cast<int32_t>(symbols[i].id));
  if (symbols.capacity() > kKeep) std::vector<Symbol>().swap(symbols);
  if (heap.capacity() > kKeep) std::vector<uint64_t>().swap(heap);
}

}  // namespace lk
