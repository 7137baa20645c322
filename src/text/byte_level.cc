#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/utf8_repair.h"

namespace lk {
namespace {

constexpr size_t kCharacters = 256 + 68;

struct Alphabet {
  std::array<uint16_t, 256> character{};
  std::array<int16_t, kCharacters> byte{};  // -1: not of the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& b : alphabet.byte) b = -1;
  uint16_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const uint16_t character = itself ? static_cast<uint16_t>(b) : next++;
    alphabet.character[b] = character;
    alphabet.byte[character] = static_cast<int16_t>(b);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

bool append_byte_level(std::string& bytes, std::string_view text) {
  const size_t before = bytes.size();
  bytes.resize(before + text.size());
  char* out = bytes.data() + before;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t code = static_cast<uint8_t>(text[i]);
    if (code >= 0x80) {
      // Every character of the alphabet takes at most two bytes in UTF-8.
      if (code >= 0xE0 || i + 1 >= text.size()) {
        code = kCharacters;
      } else {
        code = (code & 0x1Fu) << 6 | (static_cast<uint8_t>(text[++i]) & 0x3Fu);
      }
    }
    const int byte = code < kCharacters ? kAlphabet.byte[code] : -1;
    if (byte < 0) {
      bytes.resize(before);
      return false;
    }
    *out++ = static_cast<char>(byte);
  }
  bytes.resize(static_cast<size_t>(out - bytes.data()));
  return true;
}

std::string byte_level_text(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, kAlphabet.character[static_cast<uint8_t>(byte)]);
  return text;
}

}  // namespace lk
