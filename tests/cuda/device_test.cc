// The GPU as a Device: copies, pieces, recordings.
#include "backend/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "tests/cuda/on_device.h"

namespace lk::test {
namespace {

TEST(CudaDevice, NewMemoryIsZeroAndCopiesArrive) {
  CudaDevice& device = gpu();
  const size_t count = 5'000'001;
  DeviceBuffer buffer(device, count * sizeof(int), MemoryUse::kWorkspace);
  std::vector<int> values(count, -1);
  device.download(values.data(), buffer.data(), count * sizeof(int));
  EXPECT_EQ(std::count(values.begin(), values.end(), 0), static_cast<int>(count));
  std::iota(values.begin(), values.end(), 7);
  device.upload(buffer.data(), values.data(), count * sizeof(int));
  DeviceBuffer other(device, count * sizeof(int), MemoryUse::kWorkspace);
  device.copy(other.data(), buffer.data(), count * sizeof(int));
  EXPECT_EQ(OnDevice::get(other.as<int>(), count), values);
}

TEST(CudaDevice, FillMakesEveryPieceOnceFromSeveralThreads) {
  CudaDevice& device = gpu();
  const size_t granule = 12 * sizeof(uint32_t), count = 12 * 1'000'003;
  DeviceBuffer buffers[2];
  const auto fill = [&](int which) {
    buffers[which] = DeviceBuffer(device, count * sizeof(uint32_t), MemoryUse::kWeights);
    device.fill(buffers[which].data(), count * sizeof(uint32_t), granule,
                [&](std::span<std::byte> piece, size_t offset) {
                  EXPECT_EQ(offset % granule, 0u);
                  auto* values = reinterpret_cast<uint32_t*>(piece.data());
                  for (size_t i = 0; i < piece.size() / 4; ++i)
                    values[i] = static_cast<uint32_t>(offset / 4 + i + which);
                });
  };
  std::thread beside([&] { fill(1); });
  fill(0);
  beside.join();
  for (int which : {0, 1}) {
    const auto values = OnDevice::get(buffers[which].as<uint32_t>(), count);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], i + which);
  }
}

TEST(CudaDevice, RecordingsRunTheSameWork) {
  CudaDevice& device = gpu();
  DeviceBuffer from(device, 4, MemoryUse::kWorkspace), to(device, 4, MemoryUse::kWorkspace);
  int calls = 0;
  for (int i = 1; i <= 5; ++i) {
    device.upload(from.data(), &i, 4);
    device.run_recorded(17, [&] {
      ++calls;
      device.copy(to.data(), from.data(), 4);
    });
    EXPECT_EQ(OnDevice::get(to.as<int>(), 1)[0], i);
  }
  EXPECT_EQ(calls, 2);                             // once as it is, once recorded
  DeviceBuffer(device, 4, MemoryUse::kWorkspace);  // released: might have been in the recording
  device.run_recorded(17, [&] { ++calls; });
  EXPECT_EQ(calls, 3);
}

TEST(CudaDevice, SaysWhichGpuIsMissing) {
  const auto device = CudaDevice::open(64);
  ASSERT_FALSE(device);
  EXPECT_NE(device.error().message.find("cuda:64"), std::string::npos) << device.error().message;
}

}  // namespace
}  // namespace lk::test
