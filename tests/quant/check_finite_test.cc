#include <gtest/gtest.h>
#include <unistd.h>

#include "quant/formats.h"
#include "tests/quant/toy_model.h"

namespace lk {
namespace {

using namespace test;  // NOLINT: the toy model's parts

// The first complaint over the whole model.
Status check_all(const Loaded& loaded) {
  for (const StoredLinear& linear : loaded.model->linears) LK_RETURN_IF_ERROR(check_finite(linear));
  for (size_t i = 0; i < loaded.model->plain.size(); ++i) {
    LK_RETURN_IF_ERROR(check_finite(loaded.model->plain[i], loaded.table.plain[i].name, true));
  }
  return {};
}

Status check_with(const std::string& name, size_t offset, const std::string& bytes) {
  Tensors tensors = toy_base() + toy_blocks();
  for (WrittenTensor& t : tensors) {
    if (t.name == name) t.bytes.replace(offset, bytes.size(), bytes);
  }
  const Loaded loaded(tensors);
  EXPECT_TRUE(loaded.model);
  return check_all(loaded);
}

TEST(CheckFinite, GoodWeightsPass) {
  const Loaded loaded(toy_base() + toy_blocks());
  ASSERT_TRUE(loaded.model) << loaded.model.error().message;
  const Status status = check_all(loaded);
  EXPECT_TRUE(status) << status.error().message;
  // Pages given back are read again from the file.
  EXPECT_EQ(decoded(loaded.linear(Stage::kEmbedding), 0, 0).size(), static_cast<size_t>(kIn));
  EXPECT_TRUE(check_all(loaded));
}

TEST(CheckFinite, NanAndInfinityInEveryType) {
  EXPECT_ERROR(check_with("model.embed.weight", 2 * 137, "\xc0\x7f"),
               "tensor model.embed.weight holds NaN or infinity at index 137");
  EXPECT_ERROR(check_with("model.embed.weight", 0, std::string("\x80\xff", 2)), "at index 0");
  EXPECT_ERROR(check_with("model.layers.0.q.weight", 2 * 255, std::string("\x00\x7c", 2)),
               "tensor model.layers.0.q.weight holds NaN or infinity at index 255");
  EXPECT_ERROR(check_with("model.layers.0.q.bias", 4 * 3, std::string("\x00\x00\x80\xff", 4)),
               "tensor model.layers.0.q.bias holds NaN or infinity at index 3");
  EXPECT_ERROR(check_with("lm_head.weight", 4 * 9, std::string("\x01\x00\xc0\x7f", 4)),
               "at index 9");
  EXPECT_ERROR(check_with("model.layers.0.up_bias", 2, "\xff\x7f"), "up_bias holds NaN");
  EXPECT_ERROR(check_with("model.norm.weight", 2 * 63, "\x80\x7f"),
               "norm.weight holds NaN or infinity at index 63");
}

TEST(CheckFinite, Scales) {
  EXPECT_ERROR(check_with("model.layers.0.up_scales", 11, "\xff"),
               "tensor model.layers.0.up_scales holds the scale 255, which is NaN, at index 11");
  // 2^63 times 2 has a square beyond float32, times 1.5 has not. Expert 1, row 1, second group.
  Tensors tensors = toy_base() + toy_blocks();
  tensors[6].bytes[2 * (4 + 1) + 1] = static_cast<char>(127 + 63);
  std::string& codes = tensors[5].bytes;
  const size_t group = (4 + 1) * 32 + 16;
  std::fill(codes.begin() + group, codes.begin() + group + 16, '\x33');
  EXPECT_TRUE(check_all(Loaded(tensors)));
  codes[group + 2] = '\x43';
  EXPECT_ERROR(check_all(Loaded(tensors)),
               "tensor model.layers.0.up_scales makes a weight 1.8446744e+19, whose square is "
               "beyond float32 (expert 1, row 1, column 37)");
  // Under the largest scale of all, zeros are zeros.
  tensors[6].bytes[2 * (4 + 1) + 1] = '\xfe';
  std::fill(codes.begin() + group, codes.begin() + group + 16, '\x08');
  EXPECT_TRUE(check_all(Loaded(tensors)));
}

TEST(CheckFinite, PlainWeightsTooLargeForANorm) {
  EXPECT_TRUE(check_with("model.embed.weight", 2 * 137, "\x7f\x5f"));  // just below 2^64
  EXPECT_ERROR(
      check_with("model.embed.weight", 2 * 137, "\x80\xdf"),
      "tensor model.embed.weight holds the weight -1.8446744e+19 at index 137, whose square "
      "is beyond float32");
  EXPECT_TRUE(check_with("lm_head.weight", 4 * 9, "\xff\xff\x7f\x5f"));
  EXPECT_ERROR(check_with("lm_head.weight", 4 * 9, std::string("\x00\x00\x80\x7e", 4)),
               "tensor lm_head.weight holds the weight 8.507059e+37 at index 9");
  // A bias is added, never multiplied.
  EXPECT_TRUE(check_with("model.layers.0.q.bias", 4 * 3, std::string("\x00\x00\x80\x7e", 4)));
}

TEST(CheckFinite, WithoutDataThereIsNothingToCheck) {
  HfConfig config;
  config.config = std::make_shared<const Json>(Json::object());
  auto checkpoint = Checkpoint::from_headers({header_of(toy_base() + toy_blocks())}, config);
  ASSERT_TRUE(checkpoint);
  const LinearTable table = toy_table();
  auto model = match_checkpoint(*checkpoint, table);
  ASSERT_TRUE(model) << model.error().message;
  for (const StoredLinear& linear : model->linears) {
    EXPECT_TRUE(check_finite(linear));
    EXPECT_EQ(linear.experts[0][0].codes, nullptr);
  }
  EXPECT_TRUE(check_finite(model->plain[0], "norm.weight", true));
}

int64_t resident_file_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0, shared = 0;
  statm >> total >> resident >> shared;
  return shared * ::sysconf(_SC_PAGESIZE);
}

TEST(CheckFinite, PagesAreGivenBack) {
  constexpr int64_t kRows = int64_t{1} << 18;
  LinearTable table = toy_table();
  table.linears = {{.stage = Stage::kHead, .out = kRows, .in = 128, .names = {{"lm_head"}}}};
  const Tensors tensors = {{"lm_head.weight", "BF16", {kRows, 128}, ""},
                           {"model.norm.weight", "BF16", {kIn}, ""}};
  const Loaded loaded(tensors, table);
  ASSERT_TRUE(loaded.model) << loaded.model.error().message;
  const int64_t before = resident_file_bytes();
  EXPECT_TRUE(check_finite(loaded.model->linears[0]));
  EXPECT_LT(resident_file_bytes() - before, kRows * 128 * 2 / 4);
}

}  // namespace
}  // namespace lk
