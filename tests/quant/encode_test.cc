// Encoders: the codes and scales of the published tools (golden file), and that encoding undoes
// decoding for every code of every format.
#include "quant/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/numeric.h"
#include "quant/encode/elements.h"
#include "quant/formats.h"
#include "quant/stored_linear.h"

namespace lk {
namespace {

std::string unhex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string unpacked(const std::string& path) {
  std::FILE* pipe = ::popen(("xz -dc '" + path + "'").c_str(), "r");
  std::string text;
  char buffer[1 << 14];
  for (size_t n; pipe && (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    text.append(buffer, n);
  }
  if (pipe) ::pclose(pipe);
  return text;
}

// A matrix in a target's format.
struct Encoded {
  std::vector<std::byte> codes, scales;
  StoredMatrix matrix;  // views of the above
};

// Bytes for a matrix of that shape, zeroed.
Encoded room_for(const Target& target, int64_t rows, int64_t cols) {
  const Format& format = *target.stored;
  Encoded out;
  out.matrix.rows = rows;
  out.matrix.cols = cols;
  out.matrix.row_bytes = code_bytes(format.element, cols);
  out.matrix.scale_dtype = target.scales_dtype;
  out.codes.resize(static_cast<size_t>(rows * out.matrix.row_bytes));
  out.scales.resize(static_cast<size_t>(matrix_scales(format, rows, cols)) *
                    dtype_size(target.scales_dtype));
  out.matrix.codes = out.codes.data();
  out.matrix.scales = out.scales.data();
  return out;
}

Encoded encoded(const Target& target, const std::vector<float>& values, int64_t rows, int64_t cols,
                float tensor_scale) {
  const Format& format = *target.stored;
  Encoded out = room_for(target, rows, cols);
  out.matrix.tensor_scale = tensor_scale;
  const int64_t band = std::max(format.group_rows, 1);
  const size_t scales =
      static_cast<size_t>(row_scales(format, cols)) * dtype_size(target.scales_dtype);
  for (int64_t row = 0; row < rows; row += band) {
    target.encoder.encode(
        values.data() + row * cols, std::min(band, rows - row), cols, tensor_scale,
        out.codes.data() + row * out.matrix.row_bytes,
        out.scales.data() +
            (format.group_rows == 0 ? 0 : static_cast<size_t>(row / band) * scales));
  }
  return out;
}

Encoded encoded(const Target& target, const std::vector<float>& values, int64_t rows,
                int64_t cols) {
  const float largest = largest_magnitude(values.data(), rows * cols);
  return encoded(target, values, rows, cols,
                 target.encoder.tensor_scale ? target.encoder.tensor_scale(largest) : 1.0f);
}

std::vector<float> decoded(const Target& target, const Encoded& from) {
  std::vector<float> values(static_cast<size_t>(from.matrix.rows * from.matrix.cols));
  for (int64_t row = 0; row < from.matrix.rows; ++row) {
    decode_row(*target.stored, from.matrix, row, values.data() + row * from.matrix.cols);
  }
  return values;
}

std::string text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void expect_same(const std::string& got, const std::string& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    if (wrong++ == 0) first = i;
  }
  EXPECT_EQ(wrong, 0u) << what << ": byte " << first << " of " << got.size() << " is "
                       << int{static_cast<uint8_t>(got[first])} << ", expected "
                       << int{static_cast<uint8_t>(expected[first])};
}

TEST(Encode, CodesAndScalesOfThePublishedTools) {
  const auto golden = nlohmann::json::parse(
      unpacked(std::string(LK_SOURCE_DIR) + "/tests/data/quantize-golden.json.xz"));
  std::set<const Target*> seen;
  for (const auto& c : golden["cases"]) {
    const std::string format = c["format"], recipe = c["recipe"], input = c["input"];
    const std::string what = format + " " + recipe + " " + input;
    const auto found = find_target(format, recipe);
    ASSERT_TRUE(found) << found.error().message;
    const Target& target = **found;
    seen.insert(&target);
    const auto& in = golden["inputs"][input];
    const int64_t rows = in["rows"], cols = in["cols"];
    const std::string bytes = unhex(in["values"]);
    std::vector<float> values(static_cast<size_t>(rows * cols));
    ASSERT_EQ(bytes.size(), values.size() * sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    const Encoded got = encoded(target, values, rows, cols);
    std::set<std::string> parts;
    const auto check = [&](std::string_view part, const std::string& mine) {
      if (part.empty()) return;
      ASSERT_TRUE(c["tensors"].contains(part)) << what << " " << part;
      expect_same(mine, unhex(c["tensors"][std::string(part)]), what + " " + std::string(part));
      parts.insert(std::string(part));
    };
    check(target.codes, text(got.codes));
    check(target.scales, text(got.scales));
    check(target.tensor_scale,
          {reinterpret_cast<const char*>(&got.matrix.tensor_scale), sizeof(float)});
    EXPECT_EQ(parts.size(), c["tensors"].size()) << what;
  }
  for (const Target* target : all_targets()) {
    if (target == find_target("mxfp4", "transformers")) continue;  // the gpt-oss layout itself
    EXPECT_EQ(seen.count(target), 1u) << target->format << " " << target->recipe;
  }
}

TEST(Encode, EveryCodeOfEveryElement) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN
    EXPECT_EQ(encode_e4m3(e4m3_to_f32(static_cast<uint8_t>(code))), code);
  }
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(encode_e2m1_magnitude(kE2m1[code]), code);
    EXPECT_EQ(encode_e2m1_magnitude_down(kE2m1[code]), code);
  }
  for (uint32_t code = 0; code < 0x10000; ++code) {  // what linears that stay plain are written in
    if ((code & 0x7fff) > 0x7f80) continue;          // NaN
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(static_cast<uint16_t>(code))), code);
  }
  EXPECT_EQ(encode_e4m3(1e9f), 0x7e);
  EXPECT_EQ(encode_e4m3(-464.0f), 0xfe);
  EXPECT_EQ(encode_e4m3(0x1p-10f), 0);      // a tie with zero
  EXPECT_EQ(encode_e4m3(0x1.8p-9f), 2);     // ... with an odd code
  EXPECT_EQ(encode_e4m3(0x1.fp-7f), 0x08);  // the step to normal codes
  EXPECT_EQ(encode_e2m1_magnitude(1e9f), 7);
}

// Codes of one matrix that use every code the format has, and whose largest values are those from
// which the encoder finds the scales again.
class RoundTrip : public testing::TestWithParam<const Target*> {
 protected:
  void fill(Encoded& to, std::mt19937& random, bool all_scales) {
    const Target& target = *GetParam();
    const Format& format = *target.stored;
    for (std::byte& byte : to.codes) {
      unsigned code = random() & 0xff;
      if (format.element == Element::kE4M3 && (code & 0x7f) > top_code()) {
        code = (code & 0x80) | top_code();
      }
      byte = static_cast<std::byte>(code);
    }
    for (size_t s = 0; s < to.scales.size(); ++s) set_scale(to, s, random, all_scales);
    // The largest code in each group.
    const int64_t width = format.group_cols == 0 ? to.matrix.cols : format.group_cols;
    const int64_t height = std::max(format.group_rows, 1);
    for (int64_t row = 0; row < to.matrix.rows; row += height) {
      for (int64_t c = 0; c < to.matrix.cols; c += width) {
        const bool e4m3 = format.element == Element::kE4M3;
        to.codes[static_cast<size_t>(row * to.matrix.row_bytes + (e4m3 ? c : c / 2))] =
            static_cast<std::byte>(e4m3 ? top_code() : 0x17);
      }
    }
  }

 private:
  // 448 has a mantissa of 1.75, at which compressed-tensors takes the next power of two.
  static unsigned top_code() {
    return GetParam() == *find_target("mxfp8", "compressed-tensors") ? 0x7d : 0x7e;
  }
  void set_scale(Encoded& to, size_t s, std::mt19937& random, bool all_scales) {
    const Format& format = *GetParam()->stored;
    if (s * dtype_size(GetParam()->scales_dtype) >= to.scales.size()) return;
    if (format.scale == ScaleCodec::kFloat) {
      const float scale = std::ldexp(1.0f + static_cast<float>(random() % 1024) / 1024.0f,
                                     static_cast<int>(random() % 100) - 50);
      std::memcpy(to.scales.data() + s * sizeof(float), &scale, sizeof(float));
      return;
    }
    const unsigned top = format.scale == ScaleCodec::kE4M3 ? 0x7e : 240;
    // 2^-126 is the least scale that every tool gives; zero is no scale of theirs.
    const unsigned least = format.scale == ScaleCodec::kE4M3 ? 1 : 10;
    to.scales[s] = static_cast<std::byte>(all_scales ? least + s % (top - least + 1)
                                                     : least + random() % (top - least + 1));
  }
};

TEST_P(RoundTrip, EncodingUndoesDecoding) {
  const Target& target = *GetParam();
  std::mt19937 random(7);
  const struct { int64_t rows, cols; } shapes[] = {{8, 512}, {1, 128}, {130, 160}, {3, 32}};
  for (const auto& shape : shapes) {
    for (const float tensor_scale : {1.0f, 0.0123f, 3.7e4f}) {
      Encoded from = room_for(target, shape.rows, shape.cols);
      fill(from, random, shape.rows == 8);
      from.matrix.tensor_scale = target.encoder.tensor_scale ? tensor_scale : 1.0f;
      const std::vector<float> values = decoded(target, from);
      const Encoded again =
          encoded(target, values, shape.rows, shape.cols, from.matrix.tensor_scale);
      const std::string what = fmt::format("{} {} [{}, {}] scale {}", target.format, target.recipe,
                                           shape.rows, shape.cols, from.matrix.tensor_scale);
      if (target.stored->scale != ScaleCodec::kFloat) {
        expect_same(text(again.scales), text(from.scales), what + " scales");
      }
      const std::vector<float> twice = decoded(target, again);
      for (size_t i = 0; i < values.size(); ++i) {
        // A float32 scale comes back within a rounding or two; the codes do not move.
        ASSERT_NEAR(twice[i], values[i], std::fabs(values[i]) * 3e-7f) << what << " at " << i;
      }
      ASSERT_EQ(again.codes.size(), from.codes.size());
      for (size_t i = 0; i < again.codes.size(); ++i) {
        const auto got = static_cast<unsigned>(again.codes[i]);
        const auto was = static_cast<unsigned>(from.codes[i]);
        if (got == was) continue;
        // Zeros of the other sign are the one thing that tools spell their own way.
        const bool nibbles = target.stored->element == Element::kE2M1;
        const unsigned differ = got ^ was;
        const bool low = !nibbles || (differ & 0x0f) == 0 || (was & 0x07) == 0;
        const bool high = !nibbles || (differ & 0xf0) == 0 || (was & 0x70) == 0;
        EXPECT_TRUE(nibbles && (differ & 0x77) == 0 && low && high)
            << what << ": byte " << i << " was " << was << " and is " << got;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTargets, RoundTrip, testing::ValuesIn(all_targets()),
                         [](const testing::TestParamInfo<const Target*>& info) {
                           std::string name =
                               fmt::format("{}_{}", info.param->format, info.param->recipe);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Whatever the values, what was encoded once does not move again.
TEST(Encode, IsStable) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const Target* target : all_targets()) {
    for (const float size : {1e-20f, 0.02f, 1.0f, 1e20f}) {
      std::vector<float> values(static_cast<size_t>(130 * 160));
      for (float& value : values) value = normal(random) * size;
      const std::vector<float> once = decoded(*target, encoded(*target, values, 130, 160));
      const std::vector<float> twice = decoded(*target, encoded(*target, once, 130, 160));
      double off = 0, all = 0;
      for (size_t i = 0; i < once.size(); ++i) {
        off += std::pow(static_cast<double>(twice[i]) - once[i], 2);
        all += std::pow(static_cast<double>(once[i]), 2);
      }
      EXPECT_LE(std::sqrt(off / all), 1e-6)
          << target->format << " " << target->recipe << " " << size;
    }
  }
}

// Zeros, the least and the largest floats: finite scales, and no code that is a NaN.
TEST(Encode, OddValuesStayFinite) {
  const float most = std::numeric_limits<float>::max(), least = 1.4e-45f;
  for (const Target* target : all_targets()) {
    for (const float value : {0.0f, -0.0f, least, -least, 1.2e-38f, 3e-36f, most / 4, -most / 4}) {
      const std::vector<float> values(static_cast<size_t>(2 * 160), value);
      const Encoded got = encoded(*target, values, 2, 160);
      for (const float decoded_value : decoded(*target, got)) {
        ASSERT_TRUE(std::isfinite(decoded_value))
            << target->format << " " << target->recipe << " " << value;
        ASSERT_LE(std::fabs(decoded_value - value), std::fabs(value) * 0.3f + 3e-36f)
            << target->format << " " << target->recipe << " " << value;
      }
      EXPECT_GT(got.matrix.tensor_scale, 0);
      EXPECT_TRUE(std::isfinite(got.matrix.tensor_scale));
    }
  }
}

TEST(Encode, TargetsAreFoundOrListed) {
  std::set<std::string> formats;
  for (const Target* target : all_targets()) {
    if (formats.insert(std::string(target->format)).second) {
      EXPECT_EQ(find_target(target->format, ""), target);  // the first is the default
    }
    EXPECT_EQ(find_target(target->format, target->recipe), target);
    EXPECT_FALSE(target->rounding.empty());
    EXPECT_EQ(target->encoder.tensor_scale != nullptr,
              target->stored->tensor_scale != TensorScale::kNone);
    EXPECT_EQ(target->scales.empty(), target->stored->scale == ScaleCodec::kNone);
  }
  EXPECT_EQ(find_target("nvfp4", "gpt-oss").error().message,
            "nvfp4 is not written in the layout of 'gpt-oss'; --recipe may be modelopt, "
            "compressed-tensors");
  EXPECT_EQ(find_target("int4", "").error().message,
            "there is no format 'int4' to quantize to; known are mxfp4, nvfp4, fp8-block, "
            "fp8-channel, fp8-tensor, mxfp8");
}

}  // namespace
}  // namespace lk
