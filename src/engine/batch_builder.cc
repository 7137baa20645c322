#include "engine/batch_builder.h"

#include <algorithm>

#include "base/check.h"

namespace lk {

const Batch& BatchBuilder::build(const std::vector<Chunk>& chunks, int groups,
                                 std::vector<ChunkRows>& rows) {
  for (auto* array : {&token_ids_, &positions_, &adapter_, &sequence_, &query_start_, &context_len_,
                      &logit_rows_, &state_slot_}) {
    array->clear();
  }
  rows.assign(chunks.size(), {});
  query_start_.push_back(0);
  for (size_t i = 0; i < chunks.size(); ++i) {
    add_rows(chunks[i], rows[i]);
    add_tokens(chunks[i], static_cast<int>(i));
  }
  groups_.resize(groups);
  kv_.assign(groups, {});
  for (int g = 0; g < groups; ++g) add_tables(chunks, g);
  batch_ = {.tokens = static_cast<int>(token_ids_.size()),
            .sequences = static_cast<int>(chunks.size()),
            .logit_count = static_cast<int>(logit_rows_.size()),
            .token_ids = token_ids_.data(),
            .positions = positions_.data(),
            .adapter = adapter_.data(),
            .sequence = sequence_.data(),
            .query_start = query_start_.data(),
            .context_len = context_len_.data(),
            .logit_rows = logit_rows_.data(),
            .kv = kv_,
            .state_slot = state_slot_.data()};
  return batch_;
}

void BatchBuilder::add_tokens(const Chunk& chunk, int sequence) {
  const Sequence& s = *chunk.sequence;
  for (int position = s.computed; position < s.computed + chunk.count; ++position) {
    token_ids_.push_back(s.tokens[position]);
    positions_.push_back(position);
    adapter_.push_back(s.lane->slot);
    sequence_.push_back(sequence);
  }
  query_start_.push_back(static_cast<int32_t>(token_ids_.size()));
  context_len_.push_back(s.computed + chunk.count);
  state_slot_.push_back(s.state);
}

void BatchBuilder::add_rows(const Chunk& chunk, ChunkRows& rows) {
  const Sequence& s = *chunk.sequence;
  const int32_t row_of_first_token = static_cast<int32_t>(token_ids_.size()) - s.computed;
  const auto [first, last] = s.prompt_rows(chunk.count);
  rows = {.first = static_cast<int>(logit_rows_.size()),
          .prompt_first = first,
          .prompt_count = last - first};
  for (int position = first; position < last; ++position)
    logit_rows_.push_back(row_of_first_token + position);
  rows.samples = chunk.count == s.pending() && static_cast<int>(s.tokens.size()) < s.max_length;
  if (rows.samples) logit_rows_.push_back(row_of_first_token + s.computed + chunk.count - 1);
}

void BatchBuilder::add_tables(const std::vector<Chunk>& chunks, int group) {
  Group& g = groups_[group];
  size_t widest = 0;
  for (const Chunk& chunk : chunks)
    widest = std::max(widest, chunk.sequence->blocks.table(group).size());
  g.block_table.assign(widest * chunks.size(), -1);
  g.slot_mapping.clear();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Sequence& s = *chunks[i].sequence;
    const std::vector<int32_t>& table = s.blocks.table(group);
    std::copy(table.begin(), table.end(), g.block_table.begin() + i * widest);
    for (int position = s.computed; position < s.computed + chunks[i].count; ++position) {
      const int32_t block = table[position / kKvBlockTokens];
      LK_CHECK(block >= 0);
      g.slot_mapping.push_back(int64_t{block} * kKvBlockTokens + position % kKvBlockTokens);
    }
  }
  kv_[group] = {.block_table = g.block_table.data(),
                .slot_mapping = g.slot_mapping.data(),
                .max_blocks = static_cast<int>(widest)};
}

}  // namespace lk
