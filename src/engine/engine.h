// The engine loop: takes requests, runs steps, gives token events. Used by one thread.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "cache/block_pool.h"
#include "cache/kv_cache.h"
#include "cache/state_pool.h"
#include "engine/batch_builder.h"
#include "engine/kv_plan.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/token_output.h"
#include "engine/vocabulary.h"
#include "model/model.h"

namespace lk {

struct EngineOptions {
  int max_sequences = 32;     // that run at once
  int max_step_tokens = 512;  // at least max_sequences
  int max_model_len = 0;      // tokens of prompt and output; 0: what the model was made for
  size_t kv_bytes = 0;        // KV cache at most; 0: half of the memory that is available
  int adapter_slots = 16;     // as ModelOptions::adapter_slots
  bool prefix_cache = true;   // requests with the same beginning (and adapter) share its blocks
  // How often a service whose engine is idle looks whether the device is still there.
  std::chrono::milliseconds check_device_every{5000};
};

// EngineOptions::max_step_tokens that suits a device: on the CPU a long step keeps decoding streams
// waiting, a GPU computes few tokens no faster than many.
int default_step_tokens(const Device& device);

// Upper bounds of the tokens of a step, as vLLM counts them.
inline constexpr std::array<int, 13> kStepTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                         512, 1024, 2048, 4096, 8192, 16384};

struct EngineStats {
  int running = 0, waiting = 0, paused = 0;  // requests
  uint64_t steps = 0;
  int step_tokens = 0;                                                  // of the last step
  uint64_t all_tokens = 0;                                              // of all steps
  std::array<uint64_t, kStepTokenBounds.size() + 1> steps_by_tokens{};  // by bound; above the last
  uint64_t prompt_tokens = 0;  // computed, again after a preemption
  uint64_t output_tokens = 0;
  uint64_t preemptions = 0;
  double forward_cpu_seconds = 0;  // of the engine's thread in forward passes, its workers aside
  PrefixStats prefix;
  std::vector<int> free_blocks;       // by KV group
  std::vector<AdapterLoad> adapters;  // with requests, the paused ones left out
};

class Engine {
 public:
  // `model` must outlive the engine. Errors: kInvalid for options out of range, kResource if the KV
  // cache does not fit.
  static Result<std::unique_ptr<Engine>> create(Model& model, Vocabulary vocabulary,
                                                const EngineOptions& options);

  const EngineOptions& options() const { return options_; }
  int max_model_len() const { return options_.max_model_len; }
  // As check_request. Thread-safe.
  Status check(const Request& request) const;
  // A checked request, made ready for `add`. Thread-safe. Errors: as `check`.
  Result<std::unique_ptr<Sequence>> prepare(Request request) const;
  // Queues a prepared request under an id of its own.
  void add(RequestId id, std::unique_ptr<Sequence> sequence);
  // prepare and add, with the next id.
  Result<RequestId> submit(Request request);
  // Between steps. The request gets no further event. False if there is no such request (any more).
  bool cancel(RequestId id);
  // Between steps: takes the request out of the batch, with its blocks given back, until `resume`.
  // It goes on with the same bits. Does nothing if it is so already, or there is no such request.
  void pause(RequestId id);
  void resume(RequestId id);
  // Between steps: empties slots whose adapters are held by nobody else, as each step does first.
  void release_unused_adapters();

  // Throws DeviceError where the device is lost.
  void check_device() { model_.device().check(); }
  // Nothing to do: no requests, or paused ones alone.
  bool idle() const { return sequences_.size() == static_cast<size_t>(paused_); }
  // One forward pass over everything that can run; appends to `events`. Does nothing when idle.
  // Where the pass or one request's part of the output fails with an exception, the requests that
  // it was for end with kError and the others go on. An exception that comes out of here leaves the
  // engine unusable.
  void step(std::vector<TokenEvent>& events);
  EngineStats stats() const;
  std::vector<int> total_blocks() const;  // by KV group
  // Sequences that can run at once, and states kept for the prefix cache; 0 and 0 for a model
  // without recurrent layers.
  int state_slots() const { return states_.slots() - states_.snapshots(); }
  int state_snapshots() const { return states_.snapshots(); }
  std::vector<RequestId> requests() const;

 private:
  Engine(Model& model, Vocabulary vocabulary, const EngineOptions& options, const KvPlan& plan);
  void compute(const StepPlan& plan);
  void choose_on_device(const StepPlan& plan, int rows);
  void fail_request(Sequence& sequence, std::string error, std::vector<TokenEvent>& events);
  void finish(Sequence& sequence, TokenEvent&& event, std::vector<TokenEvent>& events);
  void take_rows(Sequence& sequence, const ChunkRows& rows, float* logits,
                 std::vector<TokenEvent>& events);

  Model& model_;
  Vocabulary vocabulary_;
  EngineOptions options_;
  KvCache cache_;
  BlockPools pools_;
  StatePool states_;
  Scheduler scheduler_;
  BatchBuilder builder_;
  TokenOutput output_;
  std::map<RequestId, std::unique_ptr<Sequence>> sequences_;
  RequestId next_id_ = 1;
  int paused_ = 0;
  EngineStats stats_;
  AlignedBuffer logits_;            // [logit_count, vocab]
  std::vector<RowChoice> choices_;  // [logit_count]; empty where the device chooses nothing
  std::vector<uint8_t> chosen_;     // [logit_count]
  std::vector<RowResult> results_;  // [logit_count]
  int top_ = 0;                     // the largest of the choices'
  std::vector<TopLogit> best_;      // [logit_count, top_]
  std::vector<ChunkRows> rows_;
};

}  // namespace lk
