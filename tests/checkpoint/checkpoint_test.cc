#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/checkpoint/safetensors_writer.h"

namespace lk {
namespace {

using test::file_of;
using test::TempFolder;

constexpr const char* kIndex = "model.safetensors.index.json";

// Two shards, an index and a config; each test spoils one thing.
struct Folder : TempFolder {
  Folder() {
    write("config.json", R"({"model_type": "toy", "eps": NaN})");
    write("one.safetensors", file_of({{"a", "U8", {4}, "aaaa"}, {"b", "U8", {2}, "bb"}}));
    write("two.safetensors", file_of({{"c", "U8", {3}, "ccc"}}));
    index(R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors")");
  }
  void index(const std::string& map) const {
    write(kIndex, R"({"metadata":{"total_size":9},"weight_map":{)" + map + "}}");
  }
  auto open() const { return Checkpoint::open(path()); }
};

TEST(Checkpoint, Shards) {
  Folder folder;
  auto checkpoint = folder.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(checkpoint->total_bytes(), 9u);
  EXPECT_TRUE(checkpoint->has_data());
  EXPECT_EQ(checkpoint->folder(), folder.path());
  EXPECT_EQ(checkpoint->config().model_type(), "toy");
  Checkpoint moved = std::move(*checkpoint);
  ASSERT_NE(moved.find("c"), nullptr);
  EXPECT_EQ(std::memcmp(moved.find("c")->data, "ccc", 3), 0);
  EXPECT_EQ(moved.find("d"), nullptr);
}

TEST(Checkpoint, ASingleFileGoesFirst) {
  Folder folder;
  folder.write("model.safetensors", file_of({{"z", "U8", {1}, "z"}}));
  auto checkpoint = folder.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_NE(checkpoint->find("z"), nullptr);
  EXPECT_EQ(checkpoint->find("a"), nullptr);
}

TEST(Checkpoint, BrokenIndex) {
  Folder folder;
  folder.index(R"("a":"one.safetensors","b":"one.safetensors","c":"three.safetensors")");
  EXPECT_ERROR(folder.open(), "names the shard three.safetensors, which is not there");
  folder.index(R"("a":"one.safetensors","b":"one.safetensors")");
  EXPECT_TRUE(folder.open());
  folder.index(R"("a":"one.safetensors","c":"two.safetensors")");
  EXPECT_ERROR(folder.open(), "one.safetensors holds tensor b, which");
  folder.index(
      R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors","d":"two.safetensors")");
  EXPECT_ERROR(folder.open(), "places tensor d in two.safetensors, which does not hold it");
  folder.index(R"("a":"one.safetensors","b":"two.safetensors","c":"two.safetensors")");
  EXPECT_ERROR(folder.open(), "holds tensor b, which model.safetensors.index.json places in");
  folder.index("");
  EXPECT_ERROR(folder.open(), "weight_map is empty");
  folder.index(R"("a":1)");
  EXPECT_ERROR(folder.open(), "tensor a names no shard file");
  folder.write(kIndex, "{}");
  EXPECT_ERROR(folder.open(), "field weight_map is missing");
  folder.write(kIndex, R"({"weight_map":[]})");
  EXPECT_ERROR(folder.open(), "field weight_map is a list, expected an object");
  folder.write(kIndex, "[]");
  EXPECT_ERROR(folder.open(), "field weight_map is missing");
  folder.write(kIndex, R"({"weight_map":{"a":)");
  EXPECT_ERROR(folder.open(), "not valid JSON");
  folder.remove(kIndex);
  EXPECT_ERROR(folder.open(), "holds neither model.safetensors nor");
}

TEST(Checkpoint, ATensorInTwoShards) {
  Folder folder;
  folder.write("two.safetensors", file_of({{"b", "U8", {2}, "bb"}, {"c", "U8", {3}, "ccc"}}));
  EXPECT_ERROR(folder.open(), "two.safetensors holds tensor b");
}

TEST(Checkpoint, ShardNamesStayInTheFolder) {
  Folder folder;
  for (const char* name : {"../x.safetensors", "/etc/passwd", "..", ".", "", "sub/x", "a\\\\b",
                           "x\\u0000y", ".hidden"}) {
    folder.index(fmt::format(R"("a":"{}")", name));
    EXPECT_ERROR(folder.open(), "expected a file name without folders");
  }
}

TEST(Checkpoint, ADamagedShard) {
  Folder folder;
  folder.write("two.safetensors", file_of({{"c", "U8", {3}, "cc"}}));
  EXPECT_ERROR(folder.open(), "two.safetensors: tensor c ends at byte 3, but the file holds 2");
  folder.write("two.safetensors", "");
  EXPECT_ERROR(folder.open(), "two.safetensors has 0 bytes");
}

TEST(Checkpoint, ConfigFiles) {
  Folder folder;
  folder.write("generation_config.json", "[]");
  EXPECT_ERROR(folder.open(), "generation_config.json holds a list, expected an object");
  folder.write("generation_config.json", "{");
  EXPECT_ERROR(folder.open(), "generation_config.json is not valid JSON");
  folder.remove("generation_config.json");
  folder.write("hf_quant_config.json", "3");
  EXPECT_ERROR(folder.open(), "hf_quant_config.json holds 3, expected an object");
  folder.write("hf_quant_config.json", "{}");
  EXPECT_TRUE(folder.open());
  folder.write("config.json", "{}");
  EXPECT_ERROR(folder.open(), "field model_type is missing");
  folder.remove("config.json");
  auto none = folder.open();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, ErrorKind::kNotFound);
  EXPECT_FALSE(Checkpoint::open(folder.path() + "/nowhere"));
}

TEST(Checkpoint, FromHeaders) {
  HfConfig config;
  config.config = std::make_shared<const Json>();
  const std::string one = test::header_of({{"a", "BF16", {4, 2}, ""}});
  auto checkpoint =
      Checkpoint::from_headers({one, test::header_of({{"b", "U8", {3}, ""}})}, config);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_FALSE(checkpoint->has_data());
  EXPECT_EQ(checkpoint->total_bytes(), 19u);
  EXPECT_EQ(checkpoint->find("a")->data, nullptr);
  EXPECT_ERROR(Checkpoint::from_headers({one, one}, config),
               "tensor a stands in another shard too");
}

}  // namespace
}  // namespace lk
