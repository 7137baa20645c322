// Drives Model::forward directly: many sequences in one ragged batch over paged KV, prompt and
// answer given (teacher-forced), blocks and chunks at random. For tests only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "model/model.h"

namespace lk::test {

struct Sequence {
  std::vector<int32_t> tokens;
  int slot = -1;  // adapter
};

struct SequenceRun {
  std::vector<float> logits;     // [tokens, vocab]
  std::vector<int32_t> experts;  // [moe layers, tokens, k] the experts chosen
};

struct RunOptions {
  uint64_t seed = 1;  // of chunks, of the order in a batch and of the blocks
  int steps = 1;      // forward passes at most; 1: each sequence whole
  const std::vector<SequenceRun>* forced = nullptr;  // use the experts of these runs
};

// Runs all sequences together. Results in the order of `sequences`.
std::vector<SequenceRun> run(Model& model, const std::vector<Sequence>& sequences,
                             const RunOptions& options = {});

// One case of models/tiny-gpt-oss-mxfp4/reference.json.
struct ReferenceCase {
  std::string adapter;  // "base": none
  std::vector<int32_t> prompt_ids, output_ids;
  std::vector<double> prompt_logprobs;  // of prompt_ids[1..]
  std::vector<double> token_logprobs;   // of output_ids
  std::vector<std::vector<int32_t>> top5_ids;
  std::vector<std::vector<double>> top5_logprobs;

  // Every token whose logits matter: the prompt and all of the answer but its last token.
  std::vector<int32_t> tokens() const;
};
std::string model_folder();
std::vector<ReferenceCase> reference_cases();

// |logprob - reference| of every prompt token, output token and top-5 entry of the cases that were
// run.
struct Deviation {
  std::vector<double> values;

  void add(const ReferenceCase& reference, const SequenceRun& run, int vocab);
  double mean() const;
  double quantile(double q) const;
  double largest() const { return quantile(1); }
  std::string text() const;
};

// Natural log-probabilities of one row of logits.
std::vector<double> log_softmax(const float* logits, int vocab);

// First step at which the greedy token differs from the reference, before the first step whose two
// best tokens lie within `margin` nats of each other in the reference; -1 if there is none.
int first_greedy_difference(const ReferenceCase& reference, const SequenceRun& run, int vocab,
                            double margin);

// Writes a PEFT folder with random pairs of `rank` for every attention linear and both expert
// matrices. `dtype` is "F32", "F16" or "BF16".
void write_random_adapter(const std::string& folder, const LinearTable& table, int rank,
                          const std::string& dtype, uint64_t seed);

std::shared_ptr<const Adapter> load_adapter(const std::string& folder, const std::string& name,
                                            const LinearTable& table);

}  // namespace lk::test
