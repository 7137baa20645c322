#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "quant/formats.h"
#include "quant/stored_linear.h"

namespace lk {
namespace {

// OCP MX specification, table 5 (E2M1) and section 5.4.1 (E8M0): written out, not computed.
constexpr double kCodes[16] = {0.0,  0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
                               -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};
struct Scale {
  uint8_t byte;
  double value;
};
constexpr Scale kScales[] = {{127, 1.0},
                             {128, 2.0},
                             {126, 0.5},
                             {120, 0.0078125},
                             {134, 128.0},
                             {0, 5.877471754111437539843683e-39},
                             {1, 1.175494350822287507968737e-38},
                             {252, 4.253529586511730793292183e+37}};

const std::byte* raw(const void* data) { return static_cast<const std::byte*>(data); }

TEST(Decode, Mxfp4GoldenValues) {
  for (const Scale& scale : kScales) {
    // Codes 0..15 twice; element 2i in the low nibble.
    uint8_t codes[16];
    for (int i = 0; i < 16; ++i) {
      codes[i] = static_cast<uint8_t>((2 * i % 16) | ((2 * i + 1) % 16) << 4);
    }
    StoredMatrix matrix;
    matrix.rows = 1;
    matrix.cols = 32;
    matrix.codes = raw(codes);
    matrix.row_bytes = 16;
    matrix.scales = raw(&scale.byte);
    float out[32];
    decode_row(kFormatMxfp4, matrix, 0, out);
    for (int i = 0; i < 32; ++i) {
      EXPECT_EQ(static_cast<double>(out[i]), kCodes[i % 16] * scale.value)
          << "code " << i % 16 << " scale " << int{scale.byte};
      EXPECT_EQ(std::signbit(out[i]), i % 16 >= 8);
    }
  }
}

TEST(Decode, Mxfp4RowsAndGroups) {
  // Two rows of two groups; every group its own scale, every code 1.0 (0x2).
  uint8_t codes[64];
  std::memset(codes, 0x22, sizeof(codes));
  const uint8_t scales[4] = {127, 128, 129, 130};
  StoredMatrix matrix;
  matrix.rows = 2;
  matrix.cols = 64;
  matrix.codes = raw(codes);
  matrix.row_bytes = 32;
  matrix.scales = raw(scales);
  float out[64];
  decode_row(kFormatMxfp4, matrix, 1, out);
  EXPECT_EQ(out[0], 4.0f);
  EXPECT_EQ(out[31], 4.0f);
  EXPECT_EQ(out[32], 8.0f);
  EXPECT_EQ(out[63], 8.0f);
}

TEST(Decode, PlainFormatsBothWays) {
  const uint16_t bf16[6] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};  // 1 2 3 4 5 6
  const uint16_t f16[6] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600};
  const float f32[6] = {1, 2, 3, 4, 5, 6};
  const struct {
    const Format* format;
    const void* data;
    int size;
  } cases[] = {{&kFormatBF16, bf16, 2}, {&kFormatF16, f16, 2}, {&kFormatF32, f32, 4}};
  for (const auto& c : cases) {
    StoredMatrix matrix;
    matrix.rows = 2;
    matrix.cols = 3;
    matrix.codes = raw(c.data);
    matrix.row_bytes = 3 * c.size;
    float out[3];
    decode_row(*c.format, matrix, 1, out);
    EXPECT_EQ(out[0], 4);
    EXPECT_EQ(out[2], 6);
    matrix.transposed = true;  // (3, 2) in the file
    decode_row(*c.format, matrix, 1, out);
    EXPECT_EQ(out[0], 2);
    EXPECT_EQ(out[1], 4);
    EXPECT_EQ(out[2], 6);
  }
}

TEST(Decode, BlocksOfRowsWithFloatScales) {
  const Format format{.name = "fp8",
                      .element = Element::kE4M3,
                      .scale = ScaleCodec::kFloat,
                      .group_rows = 2,
                      .group_cols = 2};
  const uint8_t codes[12] = {0x38, 0x38, 0x38, 0x40, 0x40, 0x40, 0xb8, 0x01, 0x7e, 0, 0, 0};
  const uint16_t scales[4] = {0x3f80, 0x4000, 0x4080, 0x4100};  // 1 2 / 4 8
  StoredMatrix matrix;
  matrix.rows = 3;
  matrix.cols = 3;
  matrix.codes = raw(codes);
  matrix.row_bytes = 3;
  matrix.scales = raw(scales);
  matrix.scale_dtype = DType::kBF16;
  matrix.tensor_scale = 0.5f;
  float out[3];
  decode_row(format, matrix, 1, out);  // 2 2 2, scales 1 1 2
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 1.0f);
  EXPECT_EQ(out[2], 2.0f);
  decode_row(format, matrix, 2, out);  // -1 2^-9 448, scales 4 4 8
  EXPECT_EQ(out[0], -2.0f);
  EXPECT_EQ(out[1], 0.00390625f);
  EXPECT_EQ(out[2], 1792.0f);
  const Format whole{.name = "fp8",
                     .element = Element::kE4M3,
                     .scale = ScaleCodec::kFloat,
                     .group_rows = 0,
                     .group_cols = 0};
  decode_row(whole, matrix, 2, out);  // one scale for all
  EXPECT_EQ(out[0], -0.5f);
  EXPECT_EQ(out[2], 224.0f);
}

TEST(Formats, Table) {
  for (const Format* format : all_formats()) EXPECT_EQ(find_format(format->name), format);
  EXPECT_EQ(find_format("mxfp4"), &kFormatMxfp4);
  EXPECT_EQ(find_format("bf16"), &kFormatBF16);
  EXPECT_EQ(find_format("f16"), &kFormatF16);
  EXPECT_EQ(find_format("f32"), &kFormatF32);
  EXPECT_EQ(find_format("fp3"), nullptr);
  EXPECT_EQ(code_bytes(Element::kE2M1, 33), 17);
  EXPECT_EQ(code_bytes(Element::kBF16, 3), 6);
}

}  // namespace
}  // namespace lk
