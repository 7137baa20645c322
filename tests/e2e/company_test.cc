// A request's tokens and logprobs are the same bits alone and in any company, whatever the chunks,
// after a preemption, and where the prefix cache had its beginning.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "cli/session.h"
#include "engine/kv_plan.h"
#include "tests/e2e/tasks.h"

namespace lk {
namespace {

struct Bits {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, prompt_logprobs;
  bool operator==(const Bits&) const = default;
};

// Runs every request through a new engine over `model` and returns what each got.
std::vector<Bits> run(Model& model, const std::vector<Request>& requests,
                      const EngineOptions& options, EngineStats& stats) {
  auto engine = Engine::create(model, {}, options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    return {};
  }
  std::map<RequestId, size_t> positions;
  for (size_t i = 0; i < requests.size(); ++i) positions[*(*engine)->submit(requests[i])] = i;
  std::vector<Bits> out(requests.size());
  std::vector<TokenEvent> events;
  while (!(*engine)->idle()) {
    events.clear();
    (*engine)->step(events);
    for (const TokenEvent& event : events) {
      Bits& bits = out[positions.at(event.request)];
      if (event.token >= 0)
        bits.tokens.push_back(event.token), bits.logprobs.push_back(event.logprob);
      bits.prompt_logprobs.insert(bits.prompt_logprobs.end(), event.prompt_logprobs.begin(),
                                  event.prompt_logprobs.end());
    }
  }
  stats = (*engine)->stats();
  return out;
}

class Company : public testing::TestWithParam<test::TaskModel> {};

TEST_P(Company, BitsDoNotDependOnIt) {
  const std::string& folder = GetParam().folder;
  ModelOptions model_options;
  model_options.adapter_slots = 2;
  auto model = Model::load(folder, model_options);
  ASSERT_TRUE(model) << model.error().message;
  std::vector<std::shared_ptr<const EngineAdapter>> adapters = {nullptr};
  for (const auto& [name, score] : GetParam().scores) {
    auto adapter = load_peft_adapter(folder + "/adapters/" + name, name, (*model)->linears(), {});
    ASSERT_TRUE(adapter) << adapter.error().message;
    const uint64_t identity = (*adapter)->identity;
    adapters.push_back(std::make_shared<EngineAdapter>(
        EngineAdapter{name, identity, (*model)->prepare_adapter(*adapter)}));
  }
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request request;
    for (int t = 0; t < 20 + 30 * i; ++t)
      request.prompt.push_back((t * 131 + i * 17 + t * t % 97) % 4000);
    request.adapter = adapters[i % adapters.size()];
    request.max_tokens = 60;
    request.ignore_eos = true;
    request.logprobs = 0;
    request.prompt_logprobs = i % 2 == 0;
    if (i >= 4) request.sampling.temperature = 0.8f;
    request.sampling.seed = static_cast<uint64_t>(i);
    requests.push_back(std::move(request));
  }
  EngineStats stats;
  std::vector<Bits> alone;
  for (const Request& request : requests) {
    alone.push_back(run(**model, {request},
                        {.max_model_len = 512, .kv_bytes = 64 << 20, .adapter_slots = 2}, stats)
                        .at(0));
  }
  EXPECT_EQ(run(**model, requests, {.max_model_len = 512, .kv_bytes = 64 << 20, .adapter_slots = 2},
                stats),
            alone);
  EXPECT_EQ(run(**model, requests,
                {.max_sequences = 5,
                 .max_step_tokens = 19,
                 .max_model_len = 512,
                 .kv_bytes = 64 << 20,
                 .adapter_slots = 2},
                stats),
            alone);
  // Keys and values of little more than one sequence of 305 tokens, or states of two and what comes
  // with them (plan_kv), and a few blocks more each time.
  const KvLayout& layout = (*model)->kv_layout();
  const size_t one = kv_bytes_of_sequence(layout, 305) - layout.state_bytes();
  const size_t least = std::max(one + one / 5, 4 * layout.state_bytes());
  uint64_t preemptions = 0;
  for (int more = 0; more < 6; ++more) {
    EXPECT_EQ(run(**model, requests,
                  {.max_step_tokens = 64,
                   .max_model_len = 305,
                   .kv_bytes = least + 2 * more * layout.block_bytes(0),
                   .adapter_slots = 2,
                   .prefix_cache = more % 2 == 0},
                  stats),
              alone)
        << more;
    preemptions += stats.preemptions;
  }
  EXPECT_GT(preemptions, 0u);
  // Each request again, after it has left its blocks in the cache.
  std::vector<Request> twice = requests;
  for (Request& request : twice) request.prompt_logprobs = false;
  const std::vector<Request> once = twice;
  twice.insert(twice.end(), once.begin(), once.end());
  for (Bits& bits : alone) bits.prompt_logprobs.clear();
  std::vector<Bits> expected = alone;
  expected.insert(expected.end(), alone.begin(), alone.end());
  EXPECT_EQ(run(**model, twice,
                {.max_sequences = 3,
                 .max_step_tokens = 40,
                 .max_model_len = 512,
                 .kv_bytes = 64 << 20,
                 .adapter_slots = 2},
                stats),
            expected);
  EXPECT_GT(stats.prefix.hits, 300u);
}

INSTANTIATE_TEST_SUITE_P(Models, Company, testing::ValuesIn(test::task_models()),
                         [](const auto& info) { return test::name_of(info.param); });

}  // namespace
}  // namespace lk
