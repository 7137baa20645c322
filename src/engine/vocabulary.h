// What the engine needs to know of the tokenizer. Value type, immutable once made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/text_stream.h"

namespace lk {

class Tokenizer;

struct Vocabulary {
  TextStreamFactory text;            // may be empty: events carry no text
  std::vector<int32_t> missing_ids;  // ids of the model's vocabulary without a token: never chosen
};

// For a model with `size` logits. Its text streams keep the tokenizer alive.
Vocabulary make_vocabulary(std::shared_ptr<const Tokenizer> tokenizer, int size);

}  // namespace lk
