// A request inside the engine: its tokens, its place in the KV cache and its unfinished text. Owned
// by the engine; the scheduler and the lanes hold pointers.
#pragma once

#include <memory>
#include <vector>

#include "cache/block_pool.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/stop_matcher.h"
#include "engine/text_stream.h"

namespace lk {

struct Lane;

struct Sequence {
  RequestId id = 0;
  Request request;              // its prompt has moved to `tokens`
  std::vector<int32_t> tokens;  // prompt and output
  int prompt_size = 0;
  int max_length = 0;  // of `tokens`

  // Scheduling.
  uint64_t arrival = 0;
  Lane* lane = nullptr;
  bool running = false;
  bool preempted = false;  // waits to be computed again
  bool paused = false;     // in no lane
  int computed = 0;        // leading tokens whose keys and values are in the cache
  SequenceBlocks blocks;
  int32_t state = -1;           // slot of the recurrent layers' state, while it runs
  int state_saved = 0;          // tokens after which the last snapshot was taken
  std::vector<PrefixKey> keys;  // of the full blocks of `tokens`, as far as they were needed
  bool looked_up = false;       // in the prefix cache, once or more
  int cached_tokens = 0;        // found there the first time; 0 once an event has told it

  // Output.
  RequestTimes times;
  int scored = 0;      // prompt rows whose logprobs have been given out
  TokenCounts counts;  // filled only if there are penalties
  StopMatcher stop{{}};
  std::unique_ptr<TextStream> text;

  int output_size() const { return static_cast<int>(tokens.size()) - prompt_size; }
  int pending() const { return static_cast<int>(tokens.size()) - computed; }
  // Rows [first, last) of the next `count` tokens whose logits give prompt logprobs.
  std::pair<int, int> prompt_rows(int count) const {
    if (!request.prompt_logprobs) return {computed, computed};
    const int first = std::max(computed, scored);
    return {first, std::max(first, std::min(computed + count, prompt_size - 1))};
  }
};

}  // namespace lk
