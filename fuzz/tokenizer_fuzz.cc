// Input: a tokenizer.json, a zero byte, a text. A file that is accepted must encode any text and
// stream any ids.
#include <cstdlib>
#include <string_view>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view json = input.substr(0, zero);
  const std::string_view text = zero == input.npos ? "Hello  world\xff" : input.substr(zero + 1);
  const auto tokenizer = lk::Tokenizer::parse(json, "fuzz");
  if (!tokenizer) {
    if (tokenizer.error().message.empty()) std::abort();
    return 0;
  }
  for (const bool parse_special : {false, true}) {
    const auto ids = (*tokenizer)->encode(text, {.parse_special = parse_special});
    if (!ids) continue;  // a pattern of exponential cost
    for (const int32_t id : *ids) {
      if (!(*tokenizer)->has_token(id)) std::abort();
    }
    for (const bool skip_special : {false, true}) {
      lk::Detokenizer detokenizer(*tokenizer, skip_special);
      std::string streamed;
      for (const int32_t id : *ids) streamed += detokenizer.push(id);
      streamed += detokenizer.flush();
      if (streamed != (*tokenizer)->decode(*ids, skip_special)) std::abort();
    }
  }
  return 0;
}
