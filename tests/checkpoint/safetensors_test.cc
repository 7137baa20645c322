#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/safetensors_writer.h"

namespace lk {
namespace {

using test::file_of;
using test::header_of;
using test::TempFolder;

std::string entry(const std::string& name, const std::string& fields) {
  return "{\"" + name + "\":{" + fields + "}}";
}

auto parse(const std::string& header, size_t size = 8) {
  return parse_safetensors_header(header, nullptr, size, "f");
}

TEST(Safetensors, ViewsPointIntoTheFile) {
  TempFolder folder;
  const auto path = folder.write("a.safetensors", file_of({{"b", "BF16", {2, 1}, "abcd"},
                                                           {"a", "U8", {3}, "xyz"},
                                                           {"empty", "F32", {0, 7}, ""},
                                                           {"scalar", "F32", {}, "1234"}}));
  auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 4u);
  const TensorView& b = file->tensors().at("b");
  EXPECT_EQ(b.dtype, DType::kBF16);
  EXPECT_EQ(b.shape, (Shape{2, 1}));
  EXPECT_EQ(std::memcmp(b.data, "abcd", 4), 0);
  EXPECT_EQ(std::memcmp(file->tensors().at("a").data, "xyz", 3), 0);
  EXPECT_EQ(file->tensors().at("scalar").elements(), 1);
  EXPECT_EQ(file->metadata().at("format"), "pt");
  const SafetensorsFile moved = std::move(*file);
  EXPECT_EQ(std::memcmp(moved.tensors().at("b").data, "abcd", 4), 0);
}

TEST(Safetensors, PaddedHeaderAndNoTensors) {
  EXPECT_TRUE(parse("{}   ", 0));
  EXPECT_TRUE(parse(R"({"__metadata__":{}})", 0));
  EXPECT_TRUE(parse(R"({"a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}}  )"));
}

TEST(Safetensors, EveryTruncationIsRefused) {
  TempFolder folder;
  const std::string whole = file_of({{"x", "BF16", {4}, "12345678"}, {"y", "U8", {2}, "ab"}});
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto path = folder.write("t", whole.substr(0, size));
    auto file = SafetensorsFile::open(path);
    ASSERT_FALSE(file) << size;
    EXPECT_EQ(file.error().message.rfind(path, 0), 0u) << file.error().message;
  }
  EXPECT_ERROR(SafetensorsFile::open(folder.write("t", whole + "z")),
               "the tensors end at byte 10, but the file holds 11 bytes of data");
  EXPECT_TRUE(SafetensorsFile::open(folder.write("t", whole)));
}

TEST(Safetensors, HeaderLengthLies) {
  TempFolder folder;
  std::string whole = file_of({{"x", "U8", {4}, "1234"}});
  auto with_length = [&](uint64_t length) {
    std::memcpy(whole.data(), &length, 8);
    return SafetensorsFile::open(folder.write("t", whole));
  };
  EXPECT_ERROR(with_length(100'000'001), "more than the 100000000 allowed");
  EXPECT_ERROR(with_length(UINT64_MAX), "more than the 100000000 allowed");
  EXPECT_ERROR(with_length(whole.size() - 7), "(truncated file?)");
  EXPECT_ERROR(with_length(5), "not valid JSON");
  EXPECT_ERROR(with_length(whole.size() - 8), "not valid JSON");
  EXPECT_ERROR(with_length(0), "not valid JSON");
}

TEST(Safetensors, DamagedEntries) {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  EXPECT_TRUE(parse(entry("x", good)));
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F33","shape":[2],"data_offsets":[0,8])")),
               "f: tensor x: unknown dtype F33");
  EXPECT_ERROR(parse(entry("x", R"("shape":[2],"data_offsets":[0,8])")), "dtype is missing");
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F32","data_offsets":[0,8])")), "shape is missing");
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F32","shape":[2])")), "data_offsets");
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F32","shape":[2],"data_offsets":[0])")),
               "does not hold two numbers");
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])")),
               "more than two numbers");
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F32","shape":[2],"data_offsets":[8,0])")),
               "run backwards");
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F32","shape":[3],"data_offsets":[0,8])")),
               "F32 [3] needs 12 bytes, but data_offsets [0, 8] hold 8");
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])")),
               "a negative number");
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])")),
               "the number 2.0");
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F32","shape":[2],"data_offsets":[0,1e400])")), "1e400");
  EXPECT_ERROR(
      parse(entry("x", R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8])")),
      "the number 99999999999999999999");
  EXPECT_ERROR(
      parse(entry("x", R"("dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,8])")),
      "out of range");
  EXPECT_ERROR(parse(entry("x", R"("dtype":"F32","shape":[2,[1]],"data_offsets":[0,8])")),
               "an array");
  EXPECT_ERROR(
      parse(entry("x", R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])")),
      "more than 8 extents");
  EXPECT_ERROR(parse(entry("x", good + R"(,"shape":[2])")), "the field shape occurs twice");
  EXPECT_ERROR(parse(entry("x", good + R"(,"strides":[2])")), "unknown field strides");
  EXPECT_ERROR(parse(entry("x", good), 7), "ends at byte 8, but the file holds 7 bytes");
  EXPECT_ERROR(parse(entry("x", good), 9), "the tensors end at byte 8");
  EXPECT_ERROR(parse("[]"), "an array");
  EXPECT_ERROR(parse("3"), "a number");
  EXPECT_ERROR(parse(R"({"x":null})"), "null");
  EXPECT_ERROR(parse(R"({"x":[]})"), "an array");
  EXPECT_ERROR(parse(R"({"__metadata__":{"a":1}})"), "a number");
  EXPECT_ERROR(parse(R"({"__metadata__":{"a":{}}})"), "an object");
  EXPECT_ERROR(parse(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ occurs twice");
  EXPECT_ERROR(parse(R"({"__metadata__":{"a":"1","a":"2"}})"), "holds the key a twice");
  EXPECT_ERROR(parse("{} {}"), "not valid JSON");
  EXPECT_ERROR(parse(std::string(1'000'000, '[')), "an array");
}

TEST(Safetensors, ShapeProductsDoNotOverflow) {
  // 2^50 * 2^50 wraps to 2^100; with a trailing zero the product is zero, but its prefix is not.
  EXPECT_ERROR(
      parse(entry(
          "x",
          R"("dtype":"F32","shape":[1125899906842624,1125899906842624],"data_offsets":[0,8])")),
      "is too large");
  EXPECT_ERROR(
      parse(entry(
          "x",
          R"("dtype":"F32","shape":[1125899906842624,1125899906842624,0],"data_offsets":[0,0])")),
      "is too large");
  // 2^62 elements of four bytes are 2^64.
  EXPECT_ERROR(
      parse(entry("x", R"("dtype":"F32","shape":[1125899906842624,4096],"data_offsets":[0,0])")),
      "is too large");
}

TEST(Safetensors, OverlapsHolesAndDuplicates) {
  auto two = [&](const std::string& first, const std::string& second, const char* name = "b") {
    return parse(fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[{}]}},"{}":{{"dtype":"U8","shape":[4],"data_offsets":[{}]}}}})",
        first, name, second));
  };
  EXPECT_TRUE(two("4,8", "0,4"));
  EXPECT_ERROR(two("0,4", "2,6"), "tensor b starts at byte 2, inside tensor a which ends at 4");
  EXPECT_ERROR(two("0,4", "0,4"), "inside tensor");
  EXPECT_ERROR(two("0,4", "5,9"), "tensor b ends at byte 9");
  EXPECT_ERROR(two("1,5", "5,9"), "tensor b ends at byte 9");
  EXPECT_ERROR(two("0,4", "4,8", "a"), "tensor a occurs twice");
  EXPECT_ERROR(
      parse(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})"),
      "bytes 2 to 6, before tensor b, belong to no tensor");
  EXPECT_ERROR(parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})"), "bytes 0 to 6");
}

TEST(Safetensors, NotAFile) {
  TempFolder folder;
  auto missing = SafetensorsFile::open(folder.path() + "/none");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::kNotFound);
  EXPECT_ERROR(SafetensorsFile::open(folder.path()), "not a regular file");
  EXPECT_ERROR(SafetensorsFile::open(folder.write("t", "")), "has 0 bytes");
}

}  // namespace
}  // namespace lk
