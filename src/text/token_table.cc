#include "text/token_table.h"

#include <cstring>
#include <limits>

#include "text/byte_level.h"

namespace lk {
namespace {

constexpr size_t kFirstSlots = size_t{1} << 12;

uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

TokenTable::TokenTable() : slots_(kFirstSlots), mask_(kFirstSlots - 1) {}

uint64_t TokenTable::hash_bytes(std::string_view bytes) {
  constexpr uint64_t kA = 0x9E3779B97F4A7C15u, kB = 0xD6E8FEB86659FD93u;
  uint64_t hash = bytes.size() * kB;
  for (; bytes.size() > kHead; bytes.remove_prefix(kHead))
    hash = mix(hash ^ load<uint64_t>(bytes.data()), kA);
  return mix(hash ^ head_of(bytes), kA);
}

Result<TokenTable::Token*> TokenTable::claim(std::string_view text, int64_t id) {
  if (id < 0 || id >= kMaxTokens) {
    return invalid("token '{}' has id {}, expected 0 to {}", text, id, kMaxTokens - 1);
  }
  if (has(id)) return invalid("id {} is given to both '{}' and '{}'", id, this->text(id), text);
  const size_t offset = arena_.size();
  if (text.size() > std::numeric_limits<uint32_t>::max() - offset) {
    return invalid("the tokens have more than 4 GiB of text");
  }
  if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
  Token& token = tokens_[id];
  token.verbatim = !append_byte_level(arena_, text);
  if (token.verbatim) arena_ += text;
  token.offset = static_cast<uint32_t>(offset);
  token.length = static_cast<uint32_t>(arena_.size() - offset);
  token.present = true;
  return &token;
}

Status TokenTable::add(std::string_view text, int64_t id) {
  LK_ASSIGN_OR_RETURN(Token * token, claim(text, id));
  const auto id32 = static_cast<int32_t>(id);
  if (token->verbatim) {
    if (!by_text_.emplace(text, id32).second)
      return invalid("token '{}' appears twice in the vocab", text);
    return {};
  }
  const std::string_view bytes = this->bytes(id);
  const uint64_t hash = hash_bytes(bytes);
  if (find(bytes, hash) >= 0) return invalid("token '{}' appears twice in the vocab", text);
  if (++used_ * 2 > slots_.size()) grow();
  insert({head_of(bytes), id32, static_cast<uint32_t>(bytes.size()), token->offset,
          static_cast<uint32_t>(hash)});
  longest_ = std::max(longest_, bytes.size());
  return {};
}

Status TokenTable::add_added(std::string_view text, int64_t id, bool special) {
  const int32_t known = find_text(text);
  if (known >= 0 && known != id) {
    return invalid("added token '{}' has id {}, but the same text has id {} already", text, id,
                   known);
  }
  if (known < 0) {
    LK_RETURN_IF_ERROR(claim(text, id));
    by_text_.emplace(text, static_cast<int32_t>(id));
  }
  tokens_[id].special |= special;
  return {};
}

void TokenTable::insert(const Slot& slot) {
  size_t i = slot.hash & mask_;
  while (slots_[i].id >= 0) i = (i + 1) & mask_;
  slots_[i] = slot;
}

void TokenTable::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.id >= 0) insert(slot);
  }
}

int32_t TokenTable::find_text(std::string_view text) const {
  if (const auto found = by_text_.find(std::string(text)); found != by_text_.end())
    return found->second;
  std::string bytes;
  return append_byte_level(bytes, text) ? find(bytes) : -1;
}

std::string TokenTable::text(int64_t id) const {
  if (!has(id)) return {};
  return tokens_[id].verbatim ? std::string(bytes(id)) : byte_level_text(bytes(id));
}

}  // namespace lk
