// Turns a stream of token ids into text as it comes, never cutting a UTF-8 character. One per
// stream; keeps the tokenizer alive; not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace lk {

// All pieces of push() and the last of flush(), joined, are Tokenizer::decode() of the ids.
class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  // The text that is certain after this token; may be empty. At most three bytes are held back.
  std::string push(int32_t id);
  // What was held back (U+FFFD, as it never became a character), at the end of the stream. The
  // object can be used for another stream afterwards.
  std::string flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::string held_;  // the beginning of a character
};

}  // namespace lk
