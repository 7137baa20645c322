// Which device is taken, of GPUs that are there only in name.
#include "kernels/devices.h"

#include <gtest/gtest.h>

#include "kernels/reference/reference_kernels.h"

namespace lk::test {
namespace {

// GPUs from `fits` on take the model.
OpenGpu gpus(int fits, std::vector<int>& tried) {
  return [=, &tried](int ordinal) -> Result<std::unique_ptr<Kernels>> {
    tried.push_back(ordinal);
    if (ordinal >= fits) return make_reference_kernels(1);
    return fail(ErrorKind::kResource, "cuda:{} is full", ordinal);
  };
}

TEST(Devices, TheFirstGpuThatFitsIsTaken) {
  std::vector<int> tried;
  const auto first = first_gpu(3, gpus(0, tried));
  ASSERT_TRUE(first);
  EXPECT_EQ(tried, std::vector<int>{0});
  EXPECT_TRUE(first->among);
  EXPECT_EQ(first->why.find("full"), std::string::npos) << first->why;
  tried.clear();
  const auto third = first_gpu(4, gpus(2, tried));
  ASSERT_TRUE(third);
  EXPECT_EQ(tried, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(third->why, "the first GPU that the model fits: cuda:0 is full; cuda:1 is full");
}

TEST(Devices, AllReasonsAreToldWhereNoGpuFits) {
  std::vector<int> tried;
  const auto none = first_gpu(2, gpus(9, tried));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message, "cuda:0 is full; cuda:1 is full");
  // Where there is none, the first says so.
  const auto missing = first_gpu(0, gpus(9, tried));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message, "cuda:0 is full");
}

// Nothing was decided: `run` has nothing to tell.
TEST(Devices, WhatIsAskedForIsNoChoice) {
  const auto asked = choose_device({.device = "cpu", .kernels = "reference", .threads = 1});
  ASSERT_TRUE(asked);
  EXPECT_FALSE(asked->among);
  EXPECT_EQ(asked->why, "asked for");
  const auto by_row = choose_device({.device = "auto", .kernels = "reference", .threads = 1});
  ASSERT_TRUE(by_row);
  EXPECT_FALSE(by_row->among);
  EXPECT_EQ(by_row->why, "kernels 'reference' are asked for");
}

}  // namespace
}  // namespace lk::test
