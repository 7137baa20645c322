// Perplexity of a model on a text. Stateless.
#pragma once

#include <string>

#include "base/result.h"

namespace lk {

struct Perplexity {
  double value = 0;    // e to the mean negative log-probability of a token after those before it
  int64_t tokens = 0;  // that were counted
};

// Loads the base model in `folder`, cuts `text` into pieces of at most 1024 tokens (the model's
// context if that is shorter) and reads each by itself. Errors: one sentence; kInvalid if the text
// has under two tokens.
Result<Perplexity> measure_perplexity(const std::string& folder, const std::string& text,
                                      int threads);

}  // namespace lk
