// A byte-level BPE tokenizer read from a Hugging Face tokenizer.json: text to token ids and back,
// id for id as the `tokenizers` library. Owns everything it needs; immutable once loaded, all
// methods are thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_table.h"

namespace lk {

struct EncodeOptions {
  // Add what the file's post_processor adds (BOS, EOS).
  bool add_special_tokens = true;
  // Recognize special tokens written in the text. Off for text that comes from a user: "<|end|>" is
  // then encoded as seven characters. Added tokens that are not special are recognized always, as
  // in the library.
  bool parse_special = true;
};

class Tokenizer {
 public:
  // Errors: kNotFound; kInvalid (broken file); kUnsupported (a construct that is not understood, by
  // its name).
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& path);
  // `what` names the source of `json` in errors.
  static Result<std::shared_ptr<const Tokenizer>> parse(std::string_view json,
                                                        std::string_view what);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Ill-formed UTF-8 in `text` is first replaced by U+FFFD (utf8_repair.h). Any length below 4 GiB.
  // Errors: kResource if the text is longer, or the file's regular expression needs too many steps
  // on it.
  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options = {}) const;

  // The text of `ids`, with U+FFFD for what is not UTF-8. Ids without a token add nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  // The bytes that a token adds to the text (not always whole characters); empty for an id without
  // a token.
  std::string_view token_bytes(int32_t id) const { return tokens_.bytes(id); }
  // Largest id + 1. A model's logits may be longer (padded); ids in between may have no token.
  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }
  bool has_token(int32_t id) const { return tokens_.has(id); }
  bool is_special(int32_t id) const { return tokens_.special(id); }
  // By the text that the file gives a token: "<|end|>", or "Ġthe" (byte-level alphabet,
  // byte_level.h).
  std::optional<int32_t> token_to_id(std::string_view text) const;
  std::optional<std::string> id_to_token(int32_t id) const;

 private:
  friend class TokenizerReader;
  Tokenizer() : bpe_(tokens_) {}

  Status encode_normalized(std::string_view text, bool parse_special,
                           std::vector<int32_t>& ids) const;
  Status encode_words(std::string_view text, std::vector<int32_t>& ids) const;

  TokenTable tokens_;
  Bpe bpe_;
  AddedTokens added_;             // matched in the text as it is
  AddedTokens added_normalized_;  // matched after normalization
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::vector<int32_t> prefix_, suffix_;  // added by the post_processor
};

}  // namespace lk
