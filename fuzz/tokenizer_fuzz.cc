// Input: a tokenizer.json, a zero byte, a text. A file that is accepted must encode any text and
// stream any ids.
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/byte_level.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

std::string with_model(std::string_view object) {
  static const std::string model = [] {
    std::string text =
        R"("model":{"type":"BPE","merges":["a b","ab c"],"vocab":{"ab":256,"abc":257)";
    for (int b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      const std::string token = lk::byte_level_text({&byte, 1});
      text += std::string(",\"") + (b == '"' || b == '\\' ? "\\" : "") + token +
              "\":" + std::to_string(b);
    }
    return text + "}}}";
  }();
  std::string json(object.substr(0, object.find_last_of('}')));
  return json + (json.find('"') == json.npos ? "" : ",") + model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  std::string json(input.substr(0, zero));
  if (json.find("\"vocab\"") == json.npos) json = with_model(json);
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
