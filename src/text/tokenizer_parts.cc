#include "text/tokenizer_parts.h"

#include <nlohmann/json.hpp>
#include <optional>

namespace lk {
namespace {

// GPT-2's pattern, which ByteLevel applies where use_regex is set.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Each stage of a pre_tokenizer is a level of recursion.
constexpr size_t kMaxStages = 64;

Result<std::string> get_string(const Json& object, const char* field, std::string_view where) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_string())
    return invalid("{}.{} is missing or not a string", where, field);
  return it->get<std::string>();
}

Result<bool> get_bool(const Json& object, const char* field, std::string_view where,
                      std::optional<bool> otherwise) {
  const auto it = object.find(field);
  if (it == object.end() && otherwise) return *otherwise;
  if (it == object.end() || !it->is_boolean())
    return invalid("{}.{} is missing or not true or false", where, field);
  return it->get<bool>();
}

Result<std::string> get_type(const Json& object, std::string_view where) {
  if (!object.is_object()) return invalid("{} is not an object", where);
  return get_string(object, "type", where);
}

// The members of a Sequence; their list's name differs from part to part.
Result<const Json*> get_members(const Json& sequence, const char* field, std::string_view where) {
  const auto it = sequence.find(field);
  if (it == sequence.end() || !it->is_array())
    return invalid("{}.{} is missing or not an array", where, field);
  return &*it;
}

Result<Pattern> read_split_pattern(const Json& split) {
  const auto it = split.find("pattern");
  if (it == split.end() || !it->is_object() || it->size() != 1) {
    return invalid("pre_tokenizer.pattern is missing or not an object with one field");
  }
  const std::string kind = it->begin().key();
  if (!it->begin().value().is_string())
    return invalid("pre_tokenizer.pattern.{} is not a string", kind);
  const auto text = it->begin().value().get<std::string>();
  if (kind == "Regex") return Pattern::compile(text, Pattern::Kind::kOniguruma);
  if (kind == "String") return Pattern::compile(text, Pattern::Kind::kLiteral);
  return unsupported("pre_tokenizer pattern '{}' is not supported", kind);
}

Result<SplitBehavior> read_behavior(const Json& split) {
  LK_ASSIGN_OR_RETURN(const std::string name, get_string(split, "behavior", "pre_tokenizer"));
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return unsupported("pre_tokenizer behavior '{}' is not supported", name);
}

// `complete` becomes true at ByteLevel, which must be the last.
Status add_pre_tokenizer(const Json& json, PreTokenizer& pre_tokenizer, bool& complete) {
  LK_ASSIGN_OR_RETURN(const std::string type, get_type(json, "pre_tokenizer"));
  if (type == "Sequence") {
    LK_ASSIGN_OR_RETURN(const Json* members, get_members(json, "pretokenizers", "pre_tokenizer"));
    for (const Json& member : *members)
      LK_RETURN_IF_ERROR(add_pre_tokenizer(member, pre_tokenizer, complete));
    return {};
  }
  if (pre_tokenizer.stages() >= kMaxStages) {
    return unsupported("a pre_tokenizer of more than {} parts is not supported", kMaxStages);
  }
  if (complete)
    return unsupported("pre_tokenizer type '{}' after ByteLevel is not supported", type);
  if (type == "Split") {
    LK_ASSIGN_OR_RETURN(Pattern pattern, read_split_pattern(json));
    LK_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(json));
    LK_ASSIGN_OR_RETURN(const bool invert, get_bool(json, "invert", "pre_tokenizer", false));
    pre_tokenizer.add_split(std::move(pattern), behavior, invert);
  } else if (type == "Digits") {
    LK_ASSIGN_OR_RETURN(const bool each,
                        get_bool(json, "individual_digits", "pre_tokenizer", false));
    LK_ASSIGN_OR_RETURN(Pattern pattern, Pattern::compile("\\p{N}", Pattern::Kind::kOniguruma));
    pre_tokenizer.add_split(std::move(pattern),
                            each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
  } else if (type == "ByteLevel") {
    LK_ASSIGN_OR_RETURN(const bool prefix_space,
                        get_bool(json, "add_prefix_space", "pre_tokenizer", std::nullopt));
    LK_ASSIGN_OR_RETURN(const bool use_regex, get_bool(json, "use_regex", "pre_tokenizer", true));
    if (prefix_space) pre_tokenizer.add_prefix_space();
    if (use_regex) {
      LK_ASSIGN_OR_RETURN(Pattern pattern,
                          Pattern::compile(kByteLevelPattern, Pattern::Kind::kOniguruma));
      pre_tokenizer.add_split(std::move(pattern), SplitBehavior::kIsolated, false);
    }
    complete = true;
  } else {
    return unsupported("pre_tokenizer type '{}' is not supported", type);
  }
  return {};
}

Result<const Json*> special_token_ids(const Json& json, const std::string& name) {
  const auto member = [](const Json& object, const std::string& key) -> const Json* {
    const auto it = object.is_object() ? object.find(key) : object.end();
    return it == object.end() ? nullptr : &*it;
  };
  const Json* found = member(json, "special_tokens");
  if (found) found = member(*found, name);
  if (found) found = member(*found, "ids");
  if (!found || !found->is_array()) {
    return invalid("post_processor.special_tokens has no ids for '{}'", name);
  }
  return found;
}

Result<AddedByTemplate> read_template(const Json& json, const TokenTable& tokens) {
  constexpr std::string_view kWhere = "post_processor";
  LK_ASSIGN_OR_RETURN(const Json* single, get_members(json, "single", kWhere));
  AddedByTemplate added;
  bool text_seen = false;
  for (const Json& item : *single) {
    if (!item.is_object() || item.size() != 1)
      return invalid("an item of post_processor.single is not an object with one field");
    const std::string kind = item.begin().key();
    if (kind != "Sequence" && kind != "SpecialToken")
      return unsupported("post_processor item '{}' is not supported", kind);
    if (!item.begin().value().is_object())
      return invalid("post_processor.single.{} is not an object", kind);
    LK_ASSIGN_OR_RETURN(const std::string name, get_string(item.begin().value(), "id", kWhere));
    if (kind == "Sequence") {
      if (name != "A" || text_seen)
        return unsupported("post_processor.single with other than one Sequence A is not supported");
      text_seen = true;
      continue;
    }
    LK_ASSIGN_OR_RETURN(const Json* ids, special_token_ids(json, name));
    for (const Json& id : *ids) {
      if (!id.is_number_integer() || !tokens.has(id.get<int64_t>())) {
        return invalid("post_processor.special_tokens: '{}' has the id {}, which has no token",
                       name, id.dump());
      }
      (text_seen ? added.suffix : added.prefix).push_back(id.get<int32_t>());
    }
  }
  if (!text_seen) return invalid("post_processor.single has no Sequence A");
  return added;
}

}  // namespace

Result<bool> read_model_option(std::string_view name, const Json& value) {
  const auto refuse = [&] {
    return unsupported("model.{} = {} is not supported", name, value.dump().substr(0, 100));
  };
  if (name == "type") {
    if (value != "BPE")
      return unsupported("model type {} is not supported, expected \"BPE\"",
                         value.dump().substr(0, 100));
    return false;
  }
  if (name == "dropout") {
    if (!value.is_null() && !(value.is_number() && value.get<double>() == 0)) return refuse();
    return false;
  }
  if (name == "continuing_subword_prefix" || name == "end_of_word_suffix") {
    if (!value.is_null() && value != "") return refuse();
    return false;
  }
  // The three that concern unknown characters have no effect: every byte has a token (Bpe::finish).
  if (name == "unk_token") {
    if (!value.is_null() && !value.is_string()) return invalid("model.unk_token is not a string");
    return false;
  }
  if (name == "fuse_unk" || name == "byte_fallback" || name == "ignore_merges") {
    if (value.is_null()) return false;
    if (!value.is_boolean()) return invalid("model.{} is not true or false", name);
    return value.get<bool>();
  }
  return unsupported("the field 'model.{}' is not supported", name);
}

Result<std::vector<AddedTokenEntry>> parse_added_tokens(const Json& list) {
  std::vector<AddedTokenEntry> entries;
  if (list.is_null()) return entries;
  if (!list.is_array()) return invalid("added_tokens is not an array");
  constexpr std::string_view kWhere = "added_tokens[]";
  for (const Json& item : list) {
    if (!item.is_object()) return invalid("an item of added_tokens is not an object");
    AddedTokenEntry entry;
    LK_ASSIGN_OR_RETURN(entry.token.text, get_string(item, "content", kWhere));
    LK_ASSIGN_OR_RETURN(entry.token.special, get_bool(item, "special", kWhere, false));
    LK_ASSIGN_OR_RETURN(entry.token.single_word, get_bool(item, "single_word", kWhere, false));
    LK_ASSIGN_OR_RETURN(entry.token.lstrip, get_bool(item, "lstrip", kWhere, false));
    LK_ASSIGN_OR_RETURN(entry.token.rstrip, get_bool(item, "rstrip", kWhere, false));
    LK_ASSIGN_OR_RETURN(entry.normalized,
                        get_bool(item, "normalized", kWhere, !entry.token.special));
    const auto id = item.find("id");
    if (id == item.end() || !id->is_number_integer() ||
        (id->is_number_unsigned() && id->get<uint64_t>() > INT64_MAX)) {
      return invalid("added token '{}' has no id that is a whole number", entry.token.text);
    }
    entry.id = id->get<int64_t>();
    if (entry.token.text.empty()) return invalid("an added token has no text");
    entries.push_back(std::move(entry));
  }
  return entries;
}

Status read_normalizer(const Json& json, Normalizer& normalizer) {
  if (json.is_null()) return {};
  LK_ASSIGN_OR_RETURN(const std::string type, get_type(json, "normalizer"));
  if (type == "Sequence") {
    LK_ASSIGN_OR_RETURN(const Json* members, get_members(json, "normalizers", "normalizer"));
    for (const Json& member : *members) LK_RETURN_IF_ERROR(read_normalizer(member, normalizer));
    return {};
  }
  using Step = Normalizer::Step;
  static constexpr std::pair<std::string_view, Step> kSteps[] = {{"NFC", Step::kNfc},
                                                                 {"NFD", Step::kNfd},
                                                                 {"NFKC", Step::kNfkc},
                                                                 {"NFKD", Step::kNfkd},
                                                                 {"Lowercase", Step::kLowercase}};
  for (const auto& [name, step] : kSteps) {
    if (type != name) continue;
    normalizer.add(step);
    return {};
  }
  return unsupported("normalizer type '{}' is not supported", type);
}

Status read_pre_tokenizer(const Json& json, PreTokenizer& pre_tokenizer) {
  bool complete = false;
  if (!json.is_null()) LK_RETURN_IF_ERROR(add_pre_tokenizer(json, pre_tokenizer, complete));
  if (!complete)
    return unsupported("a pre_tokenizer that does not end with ByteLevel is not supported");
  return {};
}

Result<AddedByTemplate> read_post_processor(const Json& json, const TokenTable& tokens) {
  AddedByTemplate added;
  if (json.is_null()) return added;
  LK_ASSIGN_OR_RETURN(const std::string type, get_type(json, "post_processor"));
  if (type == "ByteLevel") return added;  // moves offsets only
  if (type == "TemplateProcessing") return read_template(json, tokens);
  if (type != "Sequence") return unsupported("post_processor type '{}' is not supported", type);
  LK_ASSIGN_OR_RETURN(const Json* members, get_members(json, "processors", "post_processor"));
  for (const Json& member : *members) {
    LK_ASSIGN_OR_RETURN(const AddedByTemplate inner, read_post_processor(member, tokens));
    added.prefix.insert(added.prefix.begin(), inner.prefix.begin(), inner.prefix.end());
    added.suffix.insert(added.suffix.end(), inner.suffix.begin(), inner.suffix.end());
  }
  return added;
}

Status check_decoder(const Json& json) {
  if (json.is_null())
    return unsupported("a file without a decoder is not supported, expected ByteLevel");
  LK_ASSIGN_OR_RETURN(const std::string type, get_type(json, "decoder"));
  if (type == "ByteLevel") return {};
  if (type != "Sequence") return unsupported("decoder type '{}' is not supported", type);
  LK_ASSIGN_OR_RETURN(const Json* members, get_members(json, "decoders", "decoder"));
  if (members->size() != 1)
    return unsupported("a decoder Sequence of other than one ByteLevel is not supported");
  return check_decoder((*members)[0]);
}

}  // namespace lk
