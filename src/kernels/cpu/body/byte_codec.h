// Codes that a byte product reads: what a 32-bit word of packed weights holds. Constants only.
#pragma once

#include <cstdint>

namespace lk::cpu {
namespace {

enum class ByteCodec : uint8_t { kE2M1, kInt8 };

constexpr int codes_per_word(ByteCodec codec) { return codec == ByteCodec::kE2M1 ? 8 : 4; }

// Twice the value of an E2M1 code, raised to be positive for unsigned bytes.
constexpr int kE2m1Bias = 12;
alignas(16) constexpr uint8_t kE2m1Bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                12, 11, 10, 9,  8,  6,  4,  0};

}  // namespace
}  // namespace lk::cpu
