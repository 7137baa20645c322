#include "text/parsers/harmony.h"

#include <array>
#include <nlohmann/json.hpp>

#include "text/parsers/tool_types.h"
#include "text/parsers/writers.h"

namespace lk {
namespace {

enum Marker { kStart, kChannel, kMessage, kConstrain, kEnd, kReturn, kCall, kMarkers };
constexpr std::array<std::string_view, kMarkers> kMarkerText = {
    "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
    "<|end|>",   "<|return|>",  "<|call|>"};
constexpr std::string_view kFunctions = "functions.";
constexpr std::string_view kTo = "to=";
// A header is shorter: function names have at most 64 characters. What is longer is no header.
constexpr size_t kMaxHeader = 1024;

bool prefix_of_any(std::string_view text, std::initializer_list<std::string_view> words) {
  for (std::string_view word : words) {
    if (word.starts_with(text)) return true;
  }
  return false;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t pos = 0;
       (pos = text.find_first_not_of(kWhitespace, pos)) != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kWhitespace, pos), text.size());
    words.push_back(text.substr(pos, end - pos));
    pos = end;
  }
  return words;
}

struct Header {
  std::string role, channel, recipient;  // empty: not given
  bool has_channel = false;
};

// `channel`: where <|channel|> stood in `text`, or npos. Other markers are spaces.
Header parse_header(std::string_view text, size_t channel) {
  Header header;
  auto set_recipient = [&](std::string_view word) {
    if (header.recipient.empty()) header.recipient = word;
  };
  for (std::string_view word : split_words(text.substr(0, channel))) {
    if (word.starts_with(kTo)) {
      set_recipient(word.substr(kTo.size()));
    } else if (header.role.empty()) {
      header.role = word;
    } else if (word.starts_with(kFunctions)) {
      set_recipient(word);
    }
  }
  if (channel == std::string_view::npos) return header;
  header.has_channel = true;
  std::string_view rest = text.substr(channel);
  rest.remove_prefix(std::min(rest.find_first_not_of(kWhitespace), rest.size()));
  const size_t end = std::min(rest.find_first_of(" \t\r\n<"), rest.size());
  header.channel = rest.substr(0, end);
  for (std::string_view word : split_words(rest.substr(end))) {
    if (word.starts_with(kTo)) set_recipient(word.substr(kTo.size()));
    if (word.starts_with(kFunctions)) set_recipient(word);
  }
  return header;
}

// Whether text outside of messages may become a header: "assistant", " to=functions.f".
bool may_be_header(std::string_view text) {
  auto skip_space = [&] {
    text.remove_prefix(std::min(text.find_first_not_of(kWhitespace), text.size()));
  };
  if (text.size() > kMaxHeader) return false;
  skip_space();
  constexpr std::string_view kRole = "assistant";
  if (kRole.starts_with(text)) return true;
  if (text.starts_with(kRole)) {
    text.remove_prefix(kRole.size());
    skip_space();
  }
  if (!text.starts_with(kTo)) return kTo.starts_with(text);
  const size_t end = text.find_first_of(kWhitespace);
  return end == std::string_view::npos ||
         text.find_first_not_of(kWhitespace, end) == std::string_view::npos;
}

class HarmonyParser final : public OutputParser {
 public:
  HarmonyParser(const OutputParserOptions& options, std::array<int32_t, kMarkers> ids)
      : ids_(ids),
        reasoning_on_(!options.reasoning.empty()),
        tools_on_(!options.tools.empty()),
        offered_(options.tool_specs),
        calls_(out_) {
    start_from(options.prompt_tail);
  }

  OutputDelta push(int32_t token, std::string_view text) override {
    for (int marker = 0; marker < kMarkers; ++marker) {
      if (ids_[marker] != token) continue;
      if (text.ends_with(kMarkerText[marker])) text.remove_suffix(kMarkerText[marker].size());
      feed(text);
      feed(static_cast<Marker>(marker));
      return std::exchange(out_, {});
    }
    feed(text);
    return std::exchange(out_, {});
  }

  OutputDelta finish() override {
    if (state_ == State::kOutside) {
      const bool blank = header_.find_first_not_of(kWhitespace) == std::string::npos;
      const bool call = parse_header(header_, channel_).recipient.starts_with(kFunctions);
      if (blank ? !anything_ : !call) write_loose();
    } else if (state_ == State::kHeader) {
      abandon_header();
    }
    return std::exchange(out_, {});
  }

 private:
  enum class State { kOutside, kHeader, kInside, kLoose };  // kLoose: content without a header
  enum class Target { kReasoning, kContent, kCall };

  // The prompt's last message is open: its header, and whether its text has begun, are the
  // answer's beginning.
  void start_from(std::string_view tail) {
    const size_t start = tail.rfind(kMarkerText[kStart]);
    if (start == std::string_view::npos) return;
    tail.remove_prefix(start + kMarkerText[kStart].size());
    for (Marker end : {kEnd, kReturn, kCall}) {
      if (tail.find(kMarkerText[end]) != std::string_view::npos) return;
    }
    const size_t message = tail.find(kMarkerText[kMessage]);
    header_ = tail.substr(0, message);
    channel_ = header_.find(kMarkerText[kChannel]);
    if (channel_ != std::string::npos) header_.erase(channel_, kMarkerText[kChannel].size());
    if (message != std::string_view::npos) {
      open_message();
    } else if (channel_ != std::string::npos && header_.size() <= kMaxHeader) {
      state_ = State::kHeader;
    } else {
      clear_header();
    }
  }

  void feed(std::string_view text) {
    if (text.empty()) return;
    switch (state_) {
      case State::kOutside:
        header_ += text;
        if (!may_be_header(header_)) write_loose();
        break;
      case State::kHeader:
        header_ += text;
        if (header_.size() > kMaxHeader) write_loose();
        break;
      case State::kInside:
      case State::kLoose:
        write(text);
        break;
    }
  }

  void feed(Marker marker) {
    const bool in_text = state_ == State::kInside || state_ == State::kLoose;
    switch (marker) {
      case kStart:
        leave();
        state_ = State::kHeader;
        break;
      case kChannel:
      case kConstrain:
        if (in_text && marker == kConstrain) break;
        if (in_text || (marker == kChannel && channel_ != std::string::npos)) leave();
        state_ = State::kHeader;
        if (marker == kChannel) {
          channel_ = header_.size();
        } else if (!header_.ends_with(' ')) {
          header_ += ' ';
        }
        break;
      case kMessage:
        if (state_ == State::kInside) break;
        open_message();
        break;
      default:
        leave();
    }
  }

  // Closes what is open, header or message.
  void leave() {
    if (state_ == State::kHeader) abandon_header();
    if (state_ == State::kInside && target_ == Target::kCall && blank_) calls_.arguments("{}");
    if (state_ == State::kOutside && header_.find_first_not_of(kWhitespace) != std::string::npos) {
      write_loose();
    }
    clear_header();
    state_ = State::kOutside;
  }

  void abandon_header() {
    const Header header = parse_header(header_, channel_);
    const bool plausible =
        header.has_channel
            ? prefix_of_any(header.channel, {"analysis", "commentary", "final"})
            : header.role.starts_with(kFunctions) ||
                  prefix_of_any(header.role, {"assistant", "user", "system", "developer", "tool"});
    if (!plausible) write_loose();
  }

  void open_message() {
    const Header header = parse_header(header_, channel_);
    clear_header();
    state_ = State::kInside;
    blank_ = true;
    joined_ = false;
    std::string name;
    if (header.recipient.starts_with(kFunctions)) {
      name = header.recipient.substr(kFunctions.size());
    } else if (offered_.offers(header.recipient)) {
      name = header.recipient;
    }
    if (!name.empty() && tools_on_) {
      target_ = Target::kCall;
      anything_ = true;
      calls_.begin(std::move(name));
    } else {
      const bool thought = header.channel == "analysis" && name.empty() && reasoning_on_;
      target_ = thought ? Target::kReasoning : Target::kContent;
    }
  }

  // header_ was no header, but text.
  void write_loose() {
    state_ = State::kLoose;
    target_ = Target::kContent;
    joined_ = false;
    write(header_);
    clear_header();
  }

  void clear_header() {
    header_.clear();
    channel_ = std::string::npos;
  }

  void write(std::string_view text) {
    if (text.empty()) return;
    anything_ = true;
    if (target_ == Target::kCall) {
      if (blank_) {  // white space alone is told as {}
        blank_arguments_ += text;
        if (text.find_first_not_of(kWhitespace) == std::string_view::npos) return;
        calls_.arguments(blank_arguments_);
        blank_arguments_.clear();
        blank_ = false;
      } else {
        calls_.arguments(text);
      }
      return;
    }
    const bool thought = target_ == Target::kReasoning;
    std::string& out = thought ? out_.reasoning : out_.content;
    bool& written = thought ? reasoning_written_ : content_written_;
    if (!joined_ && written) out += '\n';
    joined_ = written = true;
    out += text;
  }

  const std::array<int32_t, kMarkers> ids_;
  const bool reasoning_on_, tools_on_;
  const ToolTypes offered_;
  OutputDelta out_;
  CallWriter calls_;
  State state_ = State::kOutside;
  Target target_ = Target::kContent;
  std::string header_;  // of the message to come; outside of messages, what may be one
  size_t channel_ = std::string::npos;  // where <|channel|> stood in header_
  std::string blank_arguments_;         // white space that arguments begin with
  bool blank_ = true;                   // the call has no arguments yet
  bool joined_ = false;                 // this message has written, its "\n" included
  bool anything_ = false, reasoning_written_ = false, content_written_ = false;
};

}  // namespace

Result<std::unique_ptr<OutputParser>> make_harmony_parser(const OutputParserOptions& options,
                                                          const Tokenizer& tokenizer) {
  std::array<int32_t, kMarkers> ids;
  for (int marker = 0; marker < kMarkers; ++marker) {
    const auto id = tokenizer.token_to_id(kMarkerText[marker]);
    if (!id) {
      return unsupported("the harmony format needs the token {}, which the tokenizer does not have",
                         kMarkerText[marker]);
    }
    ids[marker] = *id;
  }
  return std::make_unique<HarmonyParser>(options, ids);
}

}  // namespace lk
