// Drives Model::forward directly: many sequences in one ragged batch over paged KV, prompt and
// answer given (teacher-forced), blocks and chunks at random. For tests only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "kernels/select.h"
#include "model/decoder_spec.h"
#include "model/model.h"

namespace lk::test {

// A model with PEFT adapters below adapters/, each bound to the slot of its place here, and a
// reference.json.
struct Fixture {
  std::string folder;
  std::vector<std::string> adapters;
  std::string adapter_root{};  // empty: folder/adapters
};
const Fixture& tiny_gpt_oss();                  // models/tiny-gpt-oss-mxfp4
Fixture hybrid_model(const std::string& name);  // of models/, with adapters sql and json
Fixture small_model(const std::string& name);   // tests/data/models, tools/make_small_models.py
std::string model_folder();                     // of tiny_gpt_oss()

// How to load the small model; the hooks plant faults.
struct LoadHooks {
  std::string kernels = "reference";
  KvType kv_type = KvType::kF32;
  MoeOptions moe = {};
  std::function<void(DecoderSpec&)> edit = {};
  std::function<std::unique_ptr<Kernels>(std::unique_ptr<Kernels>)> wrap = {};
};
std::unique_ptr<Model> load_model(const LoadHooks& hooks = {},
                                  const Fixture& fixture = tiny_gpt_oss());

// Rows of kernels_table() that this CPU supports, without the reference; prints those that are only
// compiled.
std::vector<std::string> fast_rows();

// The same and the reference.
std::vector<std::string> every_row();
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

// Loads one of the model's adapters; a copy that a test may spoil.
Adapter load_adapter(const Model& model, const std::string& name,
                     const Fixture& fixture = tiny_gpt_oss());
// Packs an adapter and puts it into a slot.
void bind(Model& model, int slot, const Adapter& adapter);
// The slot that bind_all gives the adapter of that name; -1 for "base".
int slot_of(const std::string& adapter, const Fixture& fixture = tiny_gpt_oss());
// Binds all of them.
void bind_all(Model& model, const Fixture& fixture = tiny_gpt_oss());

struct Sequence {
  std::vector<int32_t> tokens;
  int slot = -1;  // adapter
};

struct SequenceRun {
  std::vector<float> logits;     // [tokens, vocab]
  std::vector<int32_t> experts;  // [moe layers, tokens, k] the experts chosen
};

struct RunOptions {
  uint64_t seed = 1;             // of chunks, of the order in a batch and of the blocks
  int steps = 1;                 // forward passes at most; 1: each sequence whole
  bool one_token_steps = false;  // each sequence one token at a time; `steps` is not used
  const std::vector<SequenceRun>* forced = nullptr;  // use the experts of these runs
  bool trace = true;                                 // false: the runs' experts stay empty
};

// Runs all sequences together. Results in the order of `sequences`.
std::vector<SequenceRun> run(Model& model, const std::vector<Sequence>& sequences,
                             const RunOptions& options = {});

// One case of a reference.json.
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
std::vector<ReferenceCase> reference_cases(const Fixture& fixture = tiny_gpt_oss());

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

// The cases as sequences with the slots of slot_of().
std::vector<Sequence> sequences_of(const std::vector<ReferenceCase>& cases,
                                   const Fixture& fixture = tiny_gpt_oss());
Deviation deviation(const std::vector<ReferenceCase>& cases, const std::vector<SequenceRun>& runs,
                    int vocab);

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

}  // namespace lk::test
