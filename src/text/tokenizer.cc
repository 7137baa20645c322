#include "text/tokenizer.h"

#include <simdjson.h>

#include <limits>

#include "text/utf8_repair.h"

namespace lk {
namespace {

// Calls plain(text) and token(id) for the stretches between added tokens and for these, in order.
template <typename Plain, typename Token>
Status cut(const AddedTokens& added, std::string_view text, bool parse_special, Plain&& plain,
           Token&& token) {
  size_t done = 0;
  AddedTokens::Match match;
  while (added.next(text, done, parse_special, match)) {
    if (match.begin > done) LK_RETURN_IF_ERROR(plain(text.substr(done, match.begin - done)));
    token(match.id);
    done = match.end;
  }
  if (done < text.size()) LK_RETURN_IF_ERROR(plain(text.substr(done)));
  return {};
}

}  // namespace

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::string repaired;
  if (!simdjson::validate_utf8(text.data(), text.size())) {
    append_repaired(repaired, text);
    text = repaired;
  }
  if (text.size() >= std::numeric_limits<uint32_t>::max()) {
    return fail(ErrorKind::kResource, "a text of {} bytes is too long to encode", text.size());
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (options.add_special_tokens) ids = prefix_;
  LK_RETURN_IF_ERROR(cut(
      added_, text, options.parse_special,
      [&](std::string_view part) { return encode_normalized(part, options.parse_special, ids); },
      [&](int32_t id) { ids.push_back(id); }));
  if (options.add_special_tokens) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

Status Tokenizer::encode_normalized(std::string_view text, bool parse_special,
                                    std::vector<int32_t>& ids) const {
  std::string buffer;
  text = normalizer_.apply(text, buffer);
  return cut(
      added_normalized_, text, parse_special,
      [&](std::string_view part) { return encode_words(part, ids); },
      [&](int32_t id) { ids.push_back(id); });
}

Status Tokenizer::encode_words(std::string_view text, std::vector<int32_t>& ids) const {
  struct Sink final : PreTokenizer::WordSink {
    Sink(const Bpe& bpe, std::vector<int32_t>& ids) : bpe(bpe), ids(ids) {}
    void word(std::string_view bytes) override { bpe.encode(bytes, ids); }
    const Bpe& bpe;
    std::vector<int32_t>& ids;
  } sink(bpe_, ids);
  return pre_tokenizer_.split(text, sink);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !tokens_.special(id)) bytes += tokens_.bytes(id);
  }
  if (simdjson::validate_utf8(bytes)) return bytes;
  std::string text;
  append_repaired(text, bytes);
  return text;
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view text) const {
  const int32_t id = tokens_.find_text(text);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  return tokens_.has(id) ? std::optional(tokens_.text(id)) : std::nullopt;
}

}  // namespace lk
