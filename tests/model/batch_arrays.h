// The arrays of a batch that a test fills by itself. For tests only.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace lk::test {

struct BatchArrays {
  std::vector<int32_t> ids, positions, adapter, sequence, query_start, context, rows, states;
  std::vector<KvIndex> kv;  // by KV group, of arrays that stay as they are, too

  // Valid as long as the arrays stay as they are.
  Batch batch() const {
    return {.tokens = static_cast<int>(ids.size()),
            .sequences = static_cast<int>(context.size()),
            .logit_count = static_cast<int>(rows.size()),
            .token_ids = ids.data(),
            .positions = positions.data(),
            .adapter = adapter.data(),
            .sequence = sequence.data(),
            .query_start = query_start.data(),
            .context_len = context.data(),
            .logit_rows = rows.data(),
            .kv = kv,
            .state_slot = states.data()};
  }
};

}  // namespace lk::test
