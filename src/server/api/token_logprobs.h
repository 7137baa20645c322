// Logprobs as the API tells them. Used by one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/tokenizer.h"

namespace lk {

// A token as text: its own, or "bytes:\xe2\x80" where that is not whole characters, so that
// different tokens have different texts.
std::string token_text(const Tokenizer& tokenizer, int32_t id);

// Appends {"token", "logprob", "bytes", "top_logprobs"} of a chosen token, as chat completions tell
// it. `bytes` is null for a special token that the text leaves out: all bytes joined are the text.
void append_chat_logprob(std::string& out, const Tokenizer& tokenizer, bool skip_special,
                         int32_t id, float logprob, std::span<const TopLogprob> top);

// The logprobs object of completions: four lists that grow with the tokens.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // The first token of a prompt: nothing is known of it.
  void add_first(int32_t id);
  // `top` may or may not hold `id`.
  void add(int32_t id, float logprob, std::span<const TopLogprob> top);
  bool empty() const { return tokens_.empty(); }
  // Appends {"tokens", "token_logprobs", "top_logprobs", "text_offset"} and forgets the tokens, but
  // not the offset.
  void take(std::string& out);

 private:
  void add_token(int32_t id, const std::string& text);

  const Tokenizer* tokenizer_;
  std::string tokens_, logprobs_, tops_, offsets_;  // insides of JSON lists
  int64_t offset_ = 0;                              // characters before the next token
};

// The prompt_logprobs list, as vLLM tells it: null for the first token, then
// {"<id>": {"logprob", "rank", "decoded_token"}} of each and of the most likely in its place.
class PromptLogprobs {
 public:
  // `top`: the most likely that are told.
  PromptLogprobs(const Tokenizer& tokenizer, int top) : tokenizer_(&tokenizer), top_(top) {}

  // What an event tells of the tokens of `prompt`.
  void take(std::span<const int32_t> prompt, const TokenEvent& event);
  // Appends ,"prompt_logprobs":[…].
  void append(std::string& out) const;

 private:
  void add_entry(int32_t id, float logprob, int rank);

  const Tokenizer* tokenizer_;
  int top_;
  size_t scored_ = 0;  // tokens, the first left out
  std::string list_ = "null";
};

}  // namespace lk
