// CPU time of the engine outside the forward pass, for each generated token: scheduling, building
// the batch, choosing tokens, log-probabilities and text. The model is a stand-in whose pass copies
// rows of logits that look like a language model's; its own time is taken off.
//   engine_bench [TOKENIZER.json or ""] [STREAMS]
#include <fmt/core.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>

#include "bench/arguments.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace {

using namespace lk;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Logits of 16 rows: a few likely tokens over a wide bell, as trained models have them.
class CopyModel : public Model {
 public:
  explicit CopyModel(int vocab) {
    info_.vocab = vocab;
    info_.max_positions = 4096;
    layout_.groups = {{128, {0}}, {0, {1}}};
    layout_.layer_group = {0, 1};
    layout_.kv_heads = layout_.head_dim = 1;
    std::mt19937 rng(1);
    std::normal_distribution<float> bell(0, 2.5f);
    for (int row = 0; row < kRows; ++row) {
      std::vector<float>& logits = rows_.emplace_back(vocab);
      for (float& logit : logits) logit = bell(rng);
      for (int i = 0; i < 20; ++i) logits[rng() % vocab] = 16.0f - 0.4f * static_cast<float>(i);
    }
  }
  const ModelInfo& info() const override { return info_; }
  const LinearTable& linears() const override { return table_; }
  const Kernels& kernels() const override { std::abort(); }
  const KvLayout& kv_layout() const override { return layout_; }
  std::shared_ptr<const PreparedAdapter> prepare_adapter(
      std::shared_ptr<const Adapter>) const override {
    return nullptr;
  }
  void set_slot(int, std::shared_ptr<const PreparedAdapter>) override {}
  void forward(const Batch& batch, KvCache&, float* logits, const ForwardTrace&) override {
    const double start = cpu_seconds();
    for (int r = 0; r < batch.logit_count; ++r) {
      std::memcpy(logits + static_cast<size_t>(r) * info_.vocab,
                  rows_[(batch.token_ids[batch.logit_rows[r]] + r) % kRows].data(),
                  sizeof(float) * info_.vocab);
    }
    seconds += cpu_seconds() - start;
  }

  double seconds = 0;

 private:
  static constexpr int kRows = 16;
  ModelInfo info_;
  LinearTable table_;
  KvLayout layout_;
  std::vector<std::vector<float>> rows_;
};

struct Case {
  const char* name;
  SamplingParams sampling;
  int logprobs = -1;
};

void measure(CopyModel& model, const Vocabulary& vocabulary, const Case& what, int streams,
             int tokens) {
  auto engine = Engine::create(
      model, vocabulary,
      {.max_sequences = streams, .max_step_tokens = 512, .kv_bytes = size_t{1} << 30});
  if (!engine) {
    fmt::print(stderr, "engine_bench: {}\n", engine.error().message);
    std::exit(2);
  }
  for (int i = 0; i < streams; ++i) {
    Request request{.prompt = {1, 2, 3, i}, .sampling = what.sampling, .max_tokens = tokens};
    request.sampling.seed = static_cast<uint64_t>(i);
    request.logprobs = what.logprobs;
    if (!(*engine)->submit(std::move(request))) std::exit(2);
  }
  std::vector<TokenEvent> events;
  (*engine)->step(events);
  model.seconds = 0;
  const uint64_t before = (*engine)->stats().output_tokens;
  const double start = cpu_seconds();
  while (!(*engine)->idle()) {
    events.clear();
    (*engine)->step(events);
  }
  const double seconds = cpu_seconds() - start - model.seconds;
  const uint64_t made = (*engine)->stats().output_tokens - before;
  fmt::print("vocabulary {:>6}, {:>2} streams, {:<28} {:>8.2f} us a token\n", model.info().vocab,
             streams, what.name, seconds / static_cast<double>(made) * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments("engine_bench", "[TOKENIZER.json or \"\"] [STREAMS]");
  const std::vector<std::string> words = arguments.parse(argc, argv, 0, 2);
  const int streams = words.size() > 1 ? arguments.as_number("STREAMS", words[1], 1, 10'000) : 64;
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!words.empty() && !words[0].empty()) {
    auto loaded = Tokenizer::load(words[0]);
    if (!loaded) {
      fmt::print(stderr, "engine_bench: {}\n", loaded.error().message);
      return 2;
    }
    tokenizer = *loaded;
  }
  const Case cases[] = {
      {"greedy", {}},
      {"temperature 1", {.temperature = 1}},
      {"top_p 0.95", {.temperature = 1, .top_p = 0.95f}},
      {"top_p 0.95, top_k 50", {.temperature = 1, .top_k = 50, .top_p = 0.95f}},
      {"min_p 0.05", {.temperature = 1, .min_p = 0.05f}},
      {"greedy, repetition penalty", {.repetition_penalty = 1.1f}},
      {"greedy, 5 logprobs", {}, 5},
  };
  for (const int vocab : {1024, 4096, 201088}) {
    CopyModel model(vocab);
    Vocabulary vocabulary;
    // A vocabulary that the tokenizer does not fill would be mostly ids to exclude.
    if (tokenizer && vocab <= tokenizer->vocab_size())
      vocabulary = make_vocabulary(tokenizer, vocab);
    for (const Case& what : cases)
      measure(model, vocabulary, what, streams, vocab > 10000 ? 20 : 500);
  }
  return 0;
}
