// The engine loop: takes requests, runs steps, gives token events. Used by one thread.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "cache/block_pool.h"
#include "cache/kv_cache.h"
#include "engine/batch_builder.h"
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
};

struct EngineStats {
  int running = 0, waiting = 0;
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;  // computed, again after a preemption
  uint64_t output_tokens = 0;
  uint64_t preemptions = 0;
  std::vector<int> free_blocks;  // by KV group
};

class Engine {
 public:
  // `model` must outlive the engine. Errors: kInvalid for options out of range, kResource if the KV
  // cache does not fit.
  static Result<std::unique_ptr<Engine>> create(Model& model, Vocabulary vocabulary,
                                                const EngineOptions& options);

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

  bool idle() const { return sequences_.empty(); }
  // One forward pass over everything that can run; appends to `events`. Does nothing when idle.
  void step(std::vector<TokenEvent>& events);
  EngineStats stats() const;

 private:
  Engine(Model& model, Vocabulary vocabulary, const EngineOptions& options,
         const std::vector<int>& blocks);
  void take_rows(Sequence& sequence, const ChunkRows& rows, float* logits,
                 std::vector<TokenEvent>& events);

  Model& model_;
  Vocabulary vocabulary_;
  EngineOptions options_;
  KvCache cache_;
  BlockPools pools_;
  Scheduler scheduler_;
  BatchBuilder builder_;
  TokenOutput output_;
  std::map<RequestId, std::unique_ptr<Sequence>> sequences_;
  RequestId next_id_ = 1;
  EngineStats stats_;
  AlignedBuffer logits_;  // [logit_count, vocab]
  std::vector<ChunkRows> rows_;
};

}  // namespace lk
