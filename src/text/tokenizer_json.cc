// Tokenizer::load and parse: the big parts of the file (vocab, merges) are read with simdjson as
// they stream by, the small ones as a tree.
#include <simdjson.h>

#include <new>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/mmap_file.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

namespace lk {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr size_t kMaxFile = size_t{512} << 20;

}  // namespace

class TokenizerReader {
 public:
  explicit TokenizerReader(Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Status read(std::string_view json) {
    const simdjson::padded_string padded(json);
    ondemand::parser parser;
    ondemand::document document;
    ondemand::object root;
    if (auto e = parser.iterate(padded).get(document)) return broken(e);
    if (auto e = document.get_object().get(root)) return wrong(e, "the whole file", "an object");
    Json parts = Json::object();
    bool model = false;
    for (auto field : root) {
      std::string_view key;
      if (auto e = field.unescaped_key().get(key)) return broken(e);
      const std::string name(key);
      if (name == "model") {
        if (model) return invalid("\"model\" appears twice");
        model = true;
        ondemand::object object;
        if (auto e = field.value().get_object().get(object)) return wrong(e, "model", "an object");
        LK_RETURN_IF_ERROR(read_model(object));
        continue;
      }
      std::string_view raw;
      ondemand::value value;
      if (auto e = field.value().get(value)) return broken(e);
      if (auto e = simdjson::to_json_string(value).get(raw)) return broken(e);
      LK_ASSIGN_OR_RETURN(parts[name], parse_json(raw, name));
    }
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS)
      return invalid("there is more after the end of the JSON object");
    if (!model) return invalid("\"model\" is missing");
    return read_parts(parts);
  }

 private:
  static tl::unexpected<Error> broken(simdjson::error_code error) {
    if (error == simdjson::MEMALLOC) throw std::bad_alloc();
    return invalid("not valid JSON: {}", simdjson::error_message(error));
  }
  // A value of another type than expected; or the JSON itself is broken there.
  static tl::unexpected<Error> wrong(simdjson::error_code error, std::string_view name,
                                     std::string_view expected) {
    if (error != simdjson::INCORRECT_TYPE && error != simdjson::NUMBER_ERROR &&
        error != simdjson::NUMBER_OUT_OF_RANGE) {
      return broken(error);
    }
    return invalid("{} is not {}", name, expected);
  }

  Status read_model(ondemand::object& model) {
    bool vocab = false, merges = false, merges_pending = false, ignore_merges = false;
    for (auto field : model) {
      std::string_view key;
      if (auto e = field.unescaped_key().get(key)) return broken(e);
      const std::string name(key);
      ondemand::value value;
      if (auto e = field.value().get(value)) return broken(e);
      if (name == "vocab") {
        if (vocab) return invalid("model.vocab appears twice");
        vocab = true;
        LK_RETURN_IF_ERROR(read_vocab(value));
      } else if (name == "merges") {
        if (merges) return invalid("model.merges appears twice");
        merges = true;
        merges_pending = !vocab;
        if (vocab) LK_RETURN_IF_ERROR(read_merges(value));
      } else {
        std::string_view raw;
        if (auto e = simdjson::to_json_string(value).get(raw)) return broken(e);
        LK_ASSIGN_OR_RETURN(const Json option, parse_json(raw, "model." + name));
        LK_ASSIGN_OR_RETURN(const bool on, read_model_option(name, option));
        if (name == "ignore_merges") ignore_merges = on;
      }
    }
    if (!vocab) return invalid("model.vocab is missing");
    if (!merges) return invalid("model.merges is missing");
    if (merges_pending) {
      ondemand::value value;
      if (auto e = model.reset().error()) return broken(e);
      if (auto e = model.find_field("merges").get(value)) return broken(e);
      LK_RETURN_IF_ERROR(read_merges(value));
      // The fields behind must be consumed before the document can go on.
      if (auto e = model.reset().error()) return broken(e);
      for (auto field : model) {
        if (auto e = field.error()) return broken(e);
      }
    }
    return tokenizer_.bpe_.finish(ignore_merges);
  }

  Status read_vocab(ondemand::value& value) {
    ondemand::object vocab;
    if (auto e = value.get_object().get(vocab)) return wrong(e, "model.vocab", "an object");
    for (auto field : vocab) {
      std::string_view token;
      int64_t id;
      if (auto e = field.unescaped_key().get(token)) return broken(e);
      if (auto e = field.value().get_int64().get(id)) {
        return wrong(e, fmt::format("the id of token '{}' in model.vocab", token),
                     "a whole number");
      }
      LK_RETURN_IF_ERROR(tokenizer_.tokens_.add(token, id));
    }
    return {};
  }

  Status read_merges(ondemand::value& value) {
    ondemand::array merges;
    if (auto e = value.get_array().get(merges)) return wrong(e, "model.merges", "an array");
    for (auto element : merges) {
      ondemand::json_type type;
      if (auto e = element.type().get(type)) return broken(e);
      std::string_view left, right;
      if (type == ondemand::json_type::array) {
        // The views stay good: simdjson unescapes each string to a place of its own.
        ondemand::array pair;
        if (auto e = element.get_array().get(pair)) return broken(e);
        size_t n = 0;
        for (auto part : pair) {
          std::string_view text;
          if (auto e = part.get_string().get(text))
            return wrong(e, "a part of a merge in model.merges", "a string");
          (n == 0 ? left : right) = text;
          if (++n > 2) break;
        }
        if (n != 2) return invalid("a merge in model.merges has not two parts");
      } else {
        std::string_view text;
        if (auto e = element.get_string().get(text))
          return wrong(e, "a merge in model.merges", "a string or a pair");
        if (text.substr(0, 8) == "#version") continue;
        const size_t space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos) {
          return invalid("the merge '{}' in model.merges is not two texts with one space between",
                         text);
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
      LK_RETURN_IF_ERROR(tokenizer_.bpe_.add_merge(left, right));
    }
    return {};
  }

  Status read_parts(const Json& parts) {
    static constexpr std::string_view kKnown[] = {"version",        "truncation", "padding",
                                                  "added_tokens",   "normalizer", "pre_tokenizer",
                                                  "post_processor", "decoder"};
    for (const auto& [name, value] : parts.items()) {
      if (std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown)) {
        return unsupported("the field '{}' is not supported", name);
      }
    }
    const auto part = [&](const char* name) { return parts.contains(name) ? parts[name] : Json(); };
    LK_RETURN_IF_ERROR(read_normalizer(part("normalizer"), tokenizer_.normalizer_));
    LK_RETURN_IF_ERROR(read_added_tokens(part("added_tokens")));
    LK_RETURN_IF_ERROR(read_pre_tokenizer(part("pre_tokenizer"), tokenizer_.pre_tokenizer_));
    LK_ASSIGN_OR_RETURN(AddedByTemplate added,
                        read_post_processor(part("post_processor"), tokenizer_.tokens_));
    tokenizer_.prefix_ = std::move(added.prefix);
    tokenizer_.suffix_ = std::move(added.suffix);
    return check_decoder(part("decoder"));
  }

  Status read_added_tokens(const Json& list) {
    LK_ASSIGN_OR_RETURN(const std::vector<AddedTokenEntry> entries, parse_added_tokens(list));
    for (const AddedTokenEntry& entry : entries) {
      AddedToken token = entry.token;
      LK_RETURN_IF_ERROR(tokenizer_.tokens_.add_added(token.text, entry.id, token.special));
      token.id = static_cast<int32_t>(entry.id);
      if (!entry.normalized) {
        tokenizer_.added_.add(std::move(token));
        continue;
      }
      std::string buffer;
      token.text = std::string(tokenizer_.normalizer_.apply(token.text, buffer));
      if (!token.text.empty()) tokenizer_.added_normalized_.add(std::move(token));
    }
    tokenizer_.added_.finish();
    tokenizer_.added_normalized_.finish();
    return {};
  }

  Tokenizer& tokenizer_;
};

Result<std::shared_ptr<const Tokenizer>> Tokenizer::parse(std::string_view json,
                                                          std::string_view what) {
  if (json.size() > kMaxFile)
    return invalid("{} has {} bytes, more than the {} allowed", what, json.size(), kMaxFile);
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer());
  if (Status status = TokenizerReader(*tokenizer).read(json); !status) {
    return fail(status.error().kind, "{}: {}", what, status.error().message);
  }
  return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& path) {
  LK_ASSIGN_OR_RETURN(const MmapFile file, MmapFile::open(path));
  const auto bytes = file.bytes();
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace lk
