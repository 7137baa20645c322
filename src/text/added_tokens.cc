#include "text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "text/utf8_repair.h"

namespace lk {
namespace {

uint32_t last_code(std::string_view text) {
  size_t pos = text.size() - 1;
  while (pos > 0 && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) --pos;
  return next_utf8(text, pos).code;
}

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// \w of UTS 18: Alphabetic, marks, decimal digits, connectors and joiners.
bool is_word(uint32_t c) {
  switch (utf8proc_category(static_cast<int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  const bool circled_letter = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                              (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  return circled_letter || c == 0x200C || c == 0x200D;
}

}  // namespace

void AddedTokens::finish() {
  // Of tokens with the same text (after normalization) a special one comes first, then the first of
  // the file.
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) {
    return a.text != b.text ? a.text < b.text : a.special > b.special;
  });
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(),
                            [](const auto& a, const auto& b) { return a.text == b.text; }),
                tokens_.end());
  for (const AddedToken& token : tokens_) first_byte_[static_cast<uint8_t>(token.text[0])] = true;
  if (std::count(std::begin(first_byte_), std::end(first_byte_), true) == 1) {
    only_first_byte_ = static_cast<uint8_t>(tokens_[0].text[0]);
  }
}

// Narrows the sorted list byte by byte to the tokens that begin with the text read so far.
const AddedToken* AddedTokens::longest_at(std::string_view text, size_t pos) const {
  const AddedToken* found = nullptr;
  auto low = tokens_.begin(), high = tokens_.end();
  for (size_t depth = 0; low != high; ++depth) {
    if (low->text.size() == depth) {
      found = &*low;
      if (++low == high) break;
    }
    if (pos + depth == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[pos + depth]);
    low = std::partition_point(
        low, high, [&](const auto& t) { return static_cast<uint8_t>(t.text[depth]) < byte; });
    high = std::partition_point(
        low, high, [&](const auto& t) { return static_cast<uint8_t>(t.text[depth]) == byte; });
  }
  return found;
}

bool AddedTokens::next(std::string_view text, size_t from, bool parse_special, Match& match) const {
  if (tokens_.empty()) return false;
  for (size_t pos = from; pos < text.size(); ++pos) {
    if (only_first_byte_ >= 0) {
      const void* hit = std::memchr(text.data() + pos, only_first_byte_, text.size() - pos);
      if (!hit) return false;
      pos = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    } else if (!first_byte_[static_cast<uint8_t>(text[pos])]) {
      continue;
    }
    const AddedToken* token = longest_at(text, pos);
    if (!token) continue;
    size_t begin = pos, end = pos + token->text.size();
    const bool inside_word =
        token->single_word && ((begin > 0 && is_word(last_code(text.substr(0, begin)))) ||
                               (end < text.size() && is_word(next_utf8(text, end).code)));
    if (inside_word || (token->special && !parse_special)) {
      pos = end - 1;  // no other token may begin inside
      continue;
    }
    while (token->lstrip && begin > from) {
      const uint32_t code = last_code(text.substr(0, begin));
      if (!is_space(code)) break;
      begin -= code < 0x80 ? 1 : code < 0x800 ? 2 : 3;
    }
    while (token->rstrip && end < text.size()) {
      const Utf8Step step = next_utf8(text, end);
      if (!is_space(step.code)) break;
      end += step.length;
    }
    match = {begin, end, token->id};
    return true;
  }
  return false;
}

}  // namespace lk
