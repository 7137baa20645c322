// A long prompt through every architecture: memory grows by its keys, values and state and by
// nothing else, and a sliding window keeps its window. LORIKEET_LONG_CONTEXT is the number of
// tokens (default 2,048; 32,768 take minutes).
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/engine.h"
#include "tests/model/harness.h"
#include "tests/sanitizer.h"

namespace lk {
namespace {

constexpr int kDefaultTokens = test::kSanitized ? 256 : 4096;
constexpr size_t kSlack = (size_t{4} << 20) + test::kKeptFreed;
constexpr int kChunk = 256;

size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

class LongContext : public testing::TestWithParam<std::string> {};

TEST_P(LongContext, MemoryGrowsByKeysValuesAndStateAlone) {
  const char* asked = std::getenv("LORIKEET_LONG_CONTEXT");
  const int length = asked ? std::atoi(asked) : kDefaultTokens;
  const test::Fixture fixture{std::string(LK_SOURCE_DIR) + "/" + GetParam(), {}};
  const auto model =
      test::load_model({.kernels = test::every_row().front(),
                        .kv_type = KvType::kBF16,
                        .edit = [&](DecoderSpec& spec) { spec.max_positions = length + 64; }},
                       fixture);
  auto engine = Engine::create(*model, {},
                               {.max_sequences = 1,
                                .max_step_tokens = kChunk,
                                .max_model_len = length + 16,
                                .kv_bytes = size_t{1} << 30,
                                .prefix_cache = false});
  ASSERT_TRUE(engine) << engine.error().message;
  const auto prompt_of = [&](int tokens) {
    Request request;
    for (int i = 0; i < tokens; ++i)
      request.prompt.push_back(3 + (i * 7919) % (model->info().vocab - 3));
    request.max_tokens = 4;
    request.ignore_eos = true;
    return request;
  };
  std::vector<TokenEvent> events;
  // Scratch memory and what allocators keep come with the first prompt.
  ASSERT_TRUE((*engine)->submit(prompt_of(2 * kChunk)));
  while (!(*engine)->idle()) (*engine)->step(events);
  const size_t before = resident_bytes();
  const std::vector<int> total = (*engine)->total_blocks();
  ASSERT_TRUE((*engine)->submit(prompt_of(length)));
  events.clear();
  size_t most = 0, kv = 0;
  std::vector<int> held(total.size());
  while (!(*engine)->idle()) {
    (*engine)->step(events);
    most = std::max(most, resident_bytes());
    const std::vector<int> free = (*engine)->stats().free_blocks;
    for (size_t g = 0; g < total.size(); ++g) held[g] = std::max(held[g], total[g] - free[g]);
  }
  ASSERT_EQ(events.back().finish, FinishReason::kLength);
  const KvLayout& layout = model->kv_layout();
  for (size_t g = 0; g < total.size(); ++g) {
    const int window = layout.groups[g].window;
    kv += layout.block_bytes(static_cast<int>(g)) * held[g];
    if (window > 0)
      EXPECT_LE(held[g], (window + kChunk) / kKvBlockTokens + 2) << "of a window of " << window;
    else
      EXPECT_GE(held[g], length / kKvBlockTokens);
  }
  const size_t grown = most - std::min(most, before);
  std::printf("%s: %d tokens, keys and values %.1f MB, state %.2f MB, memory grew by %.1f MB\n",
              GetParam().c_str(), length, kv * 1e-6, layout.state_bytes() * 1e-6, grown * 1e-6);
  EXPECT_LE(grown, kv + layout.state_bytes() + kSlack);
}

INSTANTIATE_TEST_SUITE_P(Architectures, LongContext,
                         testing::Values("models/tiny-gpt-oss-mxfp4", "models/tiny-qwen3.6-fp8",
                                         "models/tiny-nemotron-nvfp4",
                                         "tests/data/models/qwen3_moe", "tests/data/models/olmoe",
                                         "tests/data/models/mixtral"),
                         [](const auto& info) {
                           std::string name = std::filesystem::path(info.param).filename().string();
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

}  // namespace
}  // namespace lk
