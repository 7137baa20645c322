#include "server/api/token_logprobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api/json_text.h"
#include "text/utf8_repair.h"

namespace lk {
namespace {

bool whole_characters(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = next_utf8(text, i);
    if (!step.valid) return false;
    i += step.length;
  }
  return true;
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void append_entry(std::string& out, const Tokenizer& tokenizer, bool skip_special, int32_t id,
                  float logprob) {
  out += R"({"token":)";
  append_string(out, token_text(tokenizer, id));
  out += R"(,"logprob":)";
  append_logprob(out, logprob);
  out += R"(,"bytes":)";
  if (skip_special && tokenizer.is_special(id)) {
    out += "null";
    return;
  }
  out += '[';
  for (const char c : tokenizer.token_bytes(id)) {
    if (out.back() != '[') out += ',';
    append_integer(out, static_cast<unsigned char>(c));
  }
  out += ']';
}

void comma(std::string& list) {
  if (!list.empty()) list += ',';
}

}  // namespace

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (whole_characters(bytes)) return std::string(bytes);
  std::string out = "bytes:";
  for (const char c : bytes)
    fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

void append_chat_logprob(std::string& out, const Tokenizer& tokenizer, bool skip_special,
                         int32_t id, float logprob, std::span<const TopLogprob> top) {
  append_entry(out, tokenizer, skip_special, id, logprob);
  out += R"(,"top_logprobs":[)";
  for (const TopLogprob& other : top) {
    if (out.back() != '[') out += ',';
    append_entry(out, tokenizer, skip_special, other.id, other.logprob);
    out += '}';
  }
  out += "]}";
}

void CompletionLogprobs::add_token(int32_t id, const std::string& text) {
  comma(tokens_);
  append_string(tokens_, text);
  comma(offsets_);
  append_integer(offsets_, offset_);
  offset_ += count_characters(tokenizer_->token_bytes(id));
}

void CompletionLogprobs::add_first(int32_t id) {
  add_token(id, token_text(*tokenizer_, id));
  comma(logprobs_);
  logprobs_ += "null";
  comma(tops_);
  tops_ += "null";
}

void CompletionLogprobs::add(int32_t id, float logprob, std::span<const TopLogprob> top) {
  const std::string text = token_text(*tokenizer_, id);
  add_token(id, text);
  comma(logprobs_);
  append_logprob(logprobs_, logprob);
  comma(tops_);
  tops_ += '{';
  // Two tokens may have one text; a key must stand once, with the more likely of them.
  std::vector<std::string> seen;
  bool has_chosen = false;
  const auto entry = [this, &seen](std::string name, float value) {
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) return;
    if (!seen.empty()) tops_ += ',';
    append_string(tops_, name);
    tops_ += ':';
    append_logprob(tops_, value);
    seen.push_back(std::move(name));
  };
  for (const TopLogprob& other : top) {
    has_chosen |= other.id == id;
    entry(token_text(*tokenizer_, other.id), other.logprob);
  }
  if (!has_chosen) entry(text, logprob);
  tops_ += '}';
}

void CompletionLogprobs::take(std::string& out) {
  out += R"({"tokens":[)" + tokens_ + R"(],"token_logprobs":[)" + logprobs_ +
         R"(],"top_logprobs":[)" + tops_ + R"(],"text_offset":[)" + offsets_ + "]}";
  tokens_.clear();
  logprobs_.clear();
  tops_.clear();
  offsets_.clear();
}

void PromptLogprobs::take(std::span<const int32_t> prompt, const TokenEvent& event) {
  for (size_t i = 0; i < event.prompt_logprobs.size() && scored_ + 1 < prompt.size(); ++i) {
    const int32_t id = prompt[++scored_];
    std::span<const TopLogprob> top;
    if (i < event.prompt_top.size()) top = event.prompt_top[i];
    top = top.first(std::min(top.size(), static_cast<size_t>(top_)));
    list_ += ",{";
    add_entry(id, event.prompt_logprobs[i], event.prompt_ranks.at(i));
    for (size_t k = 0; k < top.size(); ++k) {
      if (top[k].id == id) continue;
      list_ += ',';
      add_entry(top[k].id, top[k].logprob, static_cast<int>(k) + 1);
    }
    list_ += '}';
  }
}

void PromptLogprobs::add_entry(int32_t id, float logprob, int rank) {
  list_ += '"';
  append_integer(list_, id);
  list_ += R"(":{"logprob":)";
  append_logprob(list_, logprob);
  list_ += R"(,"rank":)";
  append_integer(list_, rank);
  list_ += R"(,"decoded_token":)";
  append_string(list_, token_text(*tokenizer_, id));
  list_ += '}';
}

void PromptLogprobs::append(std::string& out) const {
  out += R"(,"prompt_logprobs":[)" + list_ + ']';
}

}  // namespace lk
