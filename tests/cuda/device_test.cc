// The GPU as a Device: copies, pieces, recordings.
#include "backend/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <atomic>
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

// What was set aside is shared out, and a place is used again once the kernels that may read it are
// done: nothing else may be allocated, and a copy that was launched before still finds its bytes.
TEST(CudaDevice, MemorySetAsideIsUsedAgainAfterTheKernels) {
  CudaDevice& device = gpu();
  constexpr size_t kBytes = size_t{64} << 20, kPiece = kBytes / 4;
  device.set_aside(kBytes, MemoryUse::kCache);
  const size_t free = device.free_memory();
  {
    std::vector<DeviceBuffer> pieces;
    for (int i = 0; i < 4; ++i) pieces.emplace_back(device, kPiece, MemoryUse::kCache);
    EXPECT_EQ(device.allocated(MemoryUse::kCache), kBytes);
    EXPECT_GT(device.free_memory() + kPiece, free) << "they lie elsewhere";
    try {
      const DeviceBuffer more(device, 1, MemoryUse::kCache);
      ADD_FAILURE() << "there is no room";
    } catch (const OutOfMemory& full) {
      EXPECT_NE(std::string(full.what()).find("1 bytes are needed"), std::string::npos)
          << full.what();
    }
    std::vector<uint8_t> mark(kPiece, 0x5a);
    DeviceBuffer copies(device, 8 * kPiece, MemoryUse::kWorkspace);
    device.upload(pieces[2].data(), mark.data(), kPiece);
    for (int i = 0; i < 400; ++i)  // milliseconds, in which the piece is released
      device.copy(copies.as<char>() + i % 8 * kPiece, pieces[2].data(), kPiece);
    pieces.erase(pieces.begin() + 2);
    std::thread loader([&] {
      const DeviceBuffer again(device, kPiece, MemoryUse::kCache);
      device.fill(again.data(), kPiece, 1, [](std::span<std::byte> piece, size_t) {
        std::fill(piece.begin(), piece.end(), std::byte{0x33});
      });
    });
    loader.join();
    EXPECT_EQ(OnDevice::get(copies.as<uint8_t>() + 7 * kPiece, kPiece), mark);
    const DeviceBuffer zeroed(device, kPiece, MemoryUse::kCache);
    EXPECT_EQ(OnDevice::get(zeroed.as<uint8_t>(), kPiece), std::vector<uint8_t>(kPiece));
  }
  device.set_aside(0, MemoryUse::kCache);
}

// Loaders wait for kernels while the stream is recorded, which neither may disturb.
TEST(CudaDevice, PlacesComeAndGoWhileStepsAreRecorded) {
  CudaDevice& device = gpu();
  device.set_aside(size_t{1} << 20, MemoryUse::kAdapters);
  int calls = 0;
  {
    DeviceBuffer from(device, 4, MemoryUse::kWorkspace), to(device, 4, MemoryUse::kWorkspace);
    std::atomic<bool> stop{false};
    std::thread loader([&] {
      // No two fit at once, so that each waits for the one before.
      while (!stop) const DeviceBuffer piece(device, size_t{600} << 10, MemoryUse::kAdapters);
    });
    for (int i = 0; i < 400; ++i) {
      device.upload(from.data(), &i, 4);
      device.run_recorded(1000 + i / 4, [&] {
        ++calls;
        device.copy(to.data(), from.data(), 4);
      });
      EXPECT_EQ(OnDevice::get(to.as<int>(), 1)[0], i);
    }
    stop = true;
    loader.join();
  }
  EXPECT_EQ(calls, 200);  // of four runs one as it is, one recorded
  device.set_aside(0, MemoryUse::kAdapters);
}

TEST(CudaDevice, SaysWhichGpuIsMissing) {
  const auto device = CudaDevice::open(64);
  ASSERT_FALSE(device);
  EXPECT_NE(device.error().message.find("cuda:64"), std::string::npos) << device.error().message;
}

}  // namespace
}  // namespace lk::test
