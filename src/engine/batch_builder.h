// Turns a step's plan into the flat arrays of a Batch. Owns the arrays; used by the engine's thread
// only.
#pragma once

#include <vector>

#include "engine/scheduler.h"
#include "kernels/kernels.h"

namespace lk {

// Which logit rows of the batch belong to a chunk: its prompt rows first, then the row that the
// next token is chosen from.
struct ChunkRows {
  int first = 0;         // row in [0, Batch::logit_count)
  int prompt_first = 0;  // prompt row (position in the sequence) of `first`
  int prompt_count = 0;
  bool samples = false;  // one more row after the prompt rows
};

class BatchBuilder {
 public:
  // The batch is valid until the next call. `rows` gets one entry for each chunk.
  const Batch& build(const std::vector<Chunk>& chunks, int groups, std::vector<ChunkRows>& rows);

 private:
  struct Group {
    std::vector<int32_t> block_table;
    std::vector<int64_t> slot_mapping;
  };
  void add_tokens(const Chunk& chunk, int sequence);
  void add_rows(const Chunk& chunk, ChunkRows& rows);
  void add_tables(const std::vector<Chunk>& chunks, int group);

  std::vector<int32_t> token_ids_, positions_, adapter_, sequence_, query_start_, context_len_,
      logit_rows_, state_slot_;
  std::vector<Group> groups_;
  std::vector<KvIndex> kv_;
  Batch batch_;
};

}  // namespace lk
