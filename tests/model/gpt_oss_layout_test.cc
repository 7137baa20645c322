#include <gtest/gtest.h>

#include "model/arch/gpt_oss.h"
#include "quant/detect.h"
#include "quant/formats.h"

namespace lk {
namespace {

const std::string kTinyModel = std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4";

TEST(GptOssLayout, TheSmallModelLoads) {
  auto checkpoint = Checkpoint::open(kTinyModel);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  auto config = parse_gpt_oss_config(checkpoint->config());
  ASSERT_TRUE(config) << config.error().message;
  const LinearTable table = gpt_oss_linear_table(*config);
  auto model = match_checkpoint(*checkpoint, table);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE(model->warnings.empty()) << model->warnings.front();
  ASSERT_EQ(model->linears.size(), table.linears.size());
  ASSERT_EQ(model->plain.size(), table.plain.size());
  for (size_t i = 0; i < model->linears.size(); ++i) {
    const StoredLinear& linear = model->linears[i];
    EXPECT_EQ(linear.spec, &table.linears[i]);
    EXPECT_EQ(linear.format, linear.spec->experts > 0 ? &kFormatMxfp4 : &kFormatBF16);
    EXPECT_EQ(linear.bias.shape.empty(), !linear.spec->bias);
    auto finite = check_finite(linear);
    EXPECT_TRUE(finite) << finite.error().message;
  }
}

}  // namespace
}  // namespace lk
