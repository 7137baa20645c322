// Codes of one row, put where the lanes that own them find them (packed.h). The bits of a 32-bit
// word stand so that the kernels' decoding is short (decode.cuh). Stateless.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/packed.h"

namespace lk::cuda {

// Byte i of a word of eight E2M1 codes holds channels 2 i and 2 i + 1, which become bits of the
// word's lower and upper half: sign, exponent and fraction of codes 0 to 2 lie 0, 3 and 6 bits
// below their place in a bfloat16 (15, 8, 7, 6), those of code 3 in what is left.
inline constexpr auto kE2m1Bits = [] {
  constexpr int kPlaces[4][4] = {{15, 8, 7, 6}, {12, 5, 4, 3}, {9, 2, 1, 0}, {14, 11, 10, 13}};
  std::array<std::array<uint32_t, 256>, 4> table{};
  for (int i = 0; i < 4; ++i) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      for (int bit = 0; bit < 4; ++bit) {
        const int place = kPlaces[i][bit];
        table[i][byte] |= (byte >> (3 - bit) & 1) << place;
        table[i][byte] |= (byte >> (7 - bit) & 1) << (16 + place);
      }
    }
  }
  return table;
}();

// An E4M3 scale (not 0) with a fifth bit of exponent in place of the numbers below the normal ones.
inline uint8_t five_bit_exponent(uint8_t code) {
  if (code >= 8) return static_cast<uint8_t>(((code >> 3) + 2) << 3 | (code & 7));
  if (code >= 4) return static_cast<uint8_t>(2 << 3 | (code & 3) << 1);
  if (code >= 2) return static_cast<uint8_t>(1 << 3 | (code & 1) << 2);
  return 0;
}

// One row's codes to row `r` of its tiles.
inline void place_codes(Codec codec, const uint8_t* codes, int k_tiles, int r, uint8_t* records) {
  const int pieces = code_pieces(codec);
  if (codec == Codec::kBf16Rows) {
    const size_t size = size_t(k_tiles) * kTileCols * 2;
    std::memcpy(records + r * size, codes, size);
    return;
  }
  const size_t stride = record_bytes(codec);
  const int half = r / 8, lane = r % 8 * 4;
  for (int t = 0; t < k_tiles; ++t, records += stride) {
    for (int j = 0; j < 4; ++j) {
      uint8_t* to = records + (lane + j) * 16;
      if (pieces == 1) {
        for (int w = 0; w < 2; ++w, codes += 4) {
          const uint32_t word = kE2m1Bits[0][codes[0]] | kE2m1Bits[1][codes[1]] |
                                kE2m1Bits[2][codes[2]] | kE2m1Bits[3][codes[3]];
          std::memcpy(to + half * 8 + w * 4, &word, 4);
        }
      } else if (meets_codes(codec)) {
        std::memcpy(to + half * 512, codes + j * 8, 8);
        std::memcpy(to + half * 512 + 8, codes + j * 8 + 32, 8);
      } else if (pieces == 2) {
        // The first two channels of four in the upper bytes of the halves.
        for (int w = 0; w < 4; ++w, codes += 4) {
          const uint32_t word =
              codes[2] | codes[0] << 8 | codes[3] << 16 | uint32_t{codes[1]} << 24;
          std::memcpy(to + half * 512 + w * 4, &word, 4);
        }
      } else {
        std::memcpy(to + half * 1024, codes, 16);
        std::memcpy(to + half * 1024 + 512, codes + 16, 16);
        codes += 32;
      }
    }
    if (meets_codes(codec)) codes += kTileCols;
  }
}

}  // namespace lk::cuda
