#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>

#include "tests/model/harness.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Counts what forward() allocates. Every operator that pairs with the deletes below: a sanitizer
// has its own of those that are left out.
__attribute__((noinline)) void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
__attribute__((noinline)) void* operator new(size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace lk::test {
namespace {

// A copy of the small model whose files a test may change.
class Load : public testing::Test {
 protected:
  Load() : folder_(testing::TempDir() + fmt::format("lorikeet_load_{}", getpid())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    for (const char* file : {"config.json", "generation_config.json", "model.safetensors"}) {
      std::filesystem::copy_file(model_folder() + "/" + file, folder_ + "/" + file);
    }
  }
  ~Load() override { std::filesystem::remove_all(folder_); }

  void edit_config(auto&& edit) {
    auto config = nlohmann::json::parse(std::ifstream(folder_ + "/config.json"));
    edit(config);
    std::ofstream(folder_ + "/config.json") << config;
  }

  std::string error() {
    const auto model = Model::load(folder_, {});
    return model ? "none" : model.error().message;
  }

  std::string folder_;
};

// The hash follows content, not threads, kernels, or what a configuration says beside the point.
TEST_F(Load, ContentHashFollowsTheContent) {
  const auto hash = [&](ModelOptions options = {}) {
    const auto model = Model::load(folder_, options);
    return model ? (*model)->info().content_hash : 0;
  };
  const uint64_t first = hash();
  EXPECT_NE(first, 0u);
  ModelOptions other;
  other.threads = 1;
  other.kernels = "reference";
  EXPECT_EQ(hash(other), first);
  edit_config(
      [](auto& config) { config["_name_or_path"] = "elsewhere", config["use_cache"] = false; });
  EXPECT_EQ(hash(), first);
  edit_config([](auto& config) { config["rope_parameters"]["factor"] = 16.0; });
  const uint64_t stretched = hash();
  EXPECT_NE(stretched, first);
  // The last byte of the file is data of a tensor.
  const std::string path = folder_ + "/model.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int last = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
  file.close();
  EXPECT_NE(hash(), stretched);
  EXPECT_NE(hash(), 0u);
}

TEST_F(Load, TellsWhatWasLoaded) {
  std::vector<std::pair<size_t, size_t>> progress;
  ModelOptions options;
  options.progress = [&](size_t done, size_t total) { progress.emplace_back(done, total); };
  const auto loaded = Model::load(folder_, options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const ModelInfo& info = (*loaded)->info();
  EXPECT_EQ(info.architecture, "gpt_oss");
  EXPECT_EQ(info.layers, 6);
  EXPECT_EQ(info.hidden, 192);
  EXPECT_EQ(info.vocab, 4096);
  EXPECT_EQ(info.max_positions, 4096);
  EXPECT_EQ(info.experts, 16);
  EXPECT_EQ(info.top_k, 4);
  EXPECT_EQ(info.eos_token_ids, (std::vector<int32_t>{4085, 4084}));
  EXPECT_TRUE(info.warnings.empty());
  const size_t file = std::filesystem::file_size(folder_ + "/model.safetensors");
  EXPECT_GT(info.weight_bytes, file * 9 / 10);
  EXPECT_LT(info.weight_bytes, file * 5 / 4);
  ASSERT_FALSE(progress.empty());
  for (size_t i = 0; i < progress.size(); ++i) {
    EXPECT_EQ(progress[i].second, progress.back().first);
    EXPECT_GT(progress[i].first, i == 0 ? 0 : progress[i - 1].first);
  }
  const KvLayout& layout = (*loaded)->kv_layout();
  ASSERT_EQ(layout.groups.size(), 2u);
  EXPECT_EQ(layout.groups[0].window, 128);
  EXPECT_EQ(layout.groups[0].layers, (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(layout.groups[1].window, 0);
  EXPECT_EQ(layout.groups[1].layers, (std::vector<int>{1, 3, 5}));
  // 16 tokens, 2 heads of 64, keys and values, bfloat16, 3 layers.
  EXPECT_EQ(layout.block_bytes(0), size_t{16} * 2 * 64 * 2 * 2 * 3);
  EXPECT_EQ(KvCache(layout, {5, 7}).bytes(), 12 * layout.block_bytes(0));
}

TEST_F(Load, RefusesWhatItDoesNotKnow) {
  EXPECT_NE(Model::load("/nowhere", {}).error().message.find("/nowhere"), std::string::npos);
  edit_config([](auto& config) { config["model_type"] = "llama"; });
  EXPECT_EQ(error().find("config.json: model_type is 'llama'; this build knows: gpt_oss"), 0u)
      << error();
  edit_config([](auto& config) {
    config["model_type"] = "gpt_oss";
    config["hidden_size"] = 256;
  });
  EXPECT_NE(error().find("[4096, 256]"), std::string::npos) << error();
}

TEST_F(Load, RefusesNotANumber) {
  // The file's last tensor is a scale tensor: 255 is NaN.
  std::fstream file(folder_ + "/model.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\xff');
  file.close();
  EXPECT_NE(error().find("NaN"), std::string::npos) << error();
}

TEST_F(Load, RefusesUnknownKernels) {
  ModelOptions options;
  options.kernels = "quantum";
  EXPECT_NE(Model::load(folder_, options).error().message.find("quantum"), std::string::npos);
}

// A tied head multiplies by the embedding; every row agrees with the reference on it.
TEST_F(Load, TiedHead) {
  edit_config([](auto& config) { config["tie_word_embeddings"] = true; });
  const Sequence sequence{{100, 200, 300, 400}, -1};
  std::vector<float> expected;
  std::vector<std::string> rows = every_row();
  std::reverse(rows.begin(), rows.end());  // the reference first
  for (const std::string& row : rows) {
    ModelOptions options;
    options.kernels = row;
    const auto model = Model::load(folder_, options);
    ASSERT_TRUE(model) << model.error().message;
    const auto logits = run(**model, {sequence})[0].logits;
    if (row == "reference") {
      expected = logits;
      const auto untied = load_model();
      EXPECT_GT(std::abs(run(*untied, {sequence})[0].logits[0] - logits[0]), 1e-3);
    }
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 0.1) << row;
  }
}

// Once a step of some size has run, another does not touch the allocator.
TEST(Forward, DoesNotAllocateInSteadyState) {
  for (const std::string& row : fast_rows()) {
    const auto model = load_model({.kernels = row, .kv_type = KvType::kBF16});
    bind_all(*model);
    KvCache cache(model->kv_layout(), {8, 8});
    constexpr int kTokens = 24;
    std::vector<int32_t> ids(kTokens), positions(kTokens), adapter(kTokens), sequence(kTokens);
    std::vector<int64_t> slots(kTokens);
    for (int t = 0; t < kTokens; ++t) {
      ids[t] = 50 + t;
      positions[t] = t % 12;
      sequence[t] = t / 12;
      adapter[t] = t / 12;
      slots[t] = t / 12 * kKvBlockTokens + t % 12;
    }
    const int32_t starts[] = {0, 12, 24}, lengths[] = {12, 12}, rows[] = {11, 23}, table[] = {0, 1};
    const KvIndex kv[] = {{table, slots.data(), 1}, {table, slots.data(), 1}};
    const Batch batch{
        kTokens, 2,       2,    ids.data(), positions.data(), adapter.data(), sequence.data(),
        starts,  lengths, rows, kv};
    std::vector<float> logits(2 * model->info().vocab);
    model->forward(batch, cache, logits.data());
    model->forward(batch, cache, logits.data());
    const int64_t before = allocations;
    for (int i = 0; i < 5; ++i) model->forward(batch, cache, logits.data());
    EXPECT_EQ(allocations - before, 0) << row;
  }
}

}  // namespace
}  // namespace lk::test
