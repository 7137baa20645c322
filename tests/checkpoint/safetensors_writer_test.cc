#include "checkpoint/safetensors_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/safetensors.h"
#include "tests/checkpoint/safetensors_writer.h"

namespace lk {
namespace {

using test::read_whole;
using test::TempFolder;

const std::vector<DeclaredTensor> kTensors = {{"codes", DType::kU8, {3, 5}},
                                              {"scale", DType::kF32, {}},
                                              {"bias", DType::kBF16, {7}},
                                              {"none", DType::kBF16, {0, 4}}};

std::vector<std::byte> bytes_for(size_t tensor) {
  std::vector<std::byte> bytes(kTensors[tensor].bytes());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(16 * tensor + i);
  return bytes;
}

TEST(SafetensorsWriter, WritesPiecesInAnyOrderAndAlignsTensors) {
  const TempFolder folder;
  {
    auto writer = SafetensorsWriter::create(folder.path(), "model", kTensors, 1 << 20);
    ASSERT_TRUE(writer) << writer.error().message;
    EXPECT_EQ(writer->total_bytes(), 15u + 4 + 14);
    for (size_t tensor : {2, 0, 1}) {
      const std::vector<std::byte> bytes = bytes_for(tensor);
      const size_t half = bytes.size() / 2;
      ASSERT_TRUE(writer->write(tensor, half, std::span(bytes).subspan(half)));
      ASSERT_TRUE(writer->write(tensor, 0, std::span(bytes).first(half)));
    }
    ASSERT_TRUE(writer->finish());
  }
  const auto file = SafetensorsFile::open(folder.path() + "/model.safetensors");
  ASSERT_TRUE(file) << file.error().message;
  for (size_t tensor = 0; tensor < kTensors.size(); ++tensor) {
    const TensorView& view = file->tensors().at(kTensors[tensor].name);
    EXPECT_EQ(view.shape, kTensors[tensor].shape);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % dtype_size(view.dtype), 0u);
    const std::vector<std::byte> bytes = bytes_for(tensor);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), view.data)) << kTensors[tensor].name;
  }
}

TEST(SafetensorsWriter, UnfinishedFilesAreRemovedAndOthersAreNot) {
  const TempFolder folder;
  folder.write("model-00002-of-00004.safetensors", "mine");
  EXPECT_ERROR(SafetensorsWriter::create(folder.path(), "model", kTensors, 8), "File exists");
  EXPECT_EQ(read_whole(folder.path() + "/model-00002-of-00004.safetensors"), "mine");
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/model-00001-of-00004.safetensors"));
  { ASSERT_TRUE(SafetensorsWriter::create(folder.path(), "other", kTensors, 1 << 20)); }
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/other.safetensors"));
  EXPECT_ERROR(SafetensorsWriter::create(folder.path() + "/none", "model", kTensors, 8),
               "No such file or directory");
}

}  // namespace
}  // namespace lk
