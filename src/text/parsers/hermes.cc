#include "text/parsers/hermes.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"

namespace lk {
namespace {

class HermesStage final : public MarkupStage {
 public:
  explicit HermesStage(OutputDelta& out) : content_(out), calls_(out) {}

  void text(std::string_view piece) override {
    if (piece.empty()) return;
    if (end_in_string_) {
      end_in_string_ = false;
      if (piece.front() == '\n') {
        leave(tag_text(Tag::kCallEnd));
      } else {
        scan(tag_text(Tag::kCallEnd));
      }
    }
    scan(piece);
  }

  void tag(Tag tag) override {
    if (std::exchange(end_in_string_, false)) leave(tag_text(Tag::kCallEnd));
    if (state_ == State::kContent) {
      if (tag == Tag::kCall) {
        enter(tag_text(tag));
      } else if (tag == Tag::kCallEnd && stray_) {
        stray_ = false;
      } else {
        content_.text(tag_text(tag));
      }
      return;
    }
    if (tag == Tag::kCallEnd && in_string_ && last_ != '\n') {
      end_in_string_ = true;
    } else if (tag == Tag::kCallEnd) {
      leave(tag_text(tag));
    } else if (tag == Tag::kCall && (!in_string_ || last_ == '\n')) {
      leave({});
      enter(tag_text(tag));
    } else {
      scan(tag_text(tag));
    }
  }

  void end(std::string_view held, bool) override {
    // Within a call it is the beginning of the closing tag.
    if (state_ == State::kContent || !begun_ || in_string_) text(held);
    if (std::exchange(end_in_string_, false)) leave(tag_text(Tag::kCallEnd));
    if (state_ != State::kContent) {
      // An unfinished call is given as it stands.
      if (!begun_ && !name_.empty() && state_ != State::kAfter) begin_call();
      leave({});
    }
    content_.end();
  }

 private:
  enum class State {
    kContent,  // outside of calls
    kObject,   // before the {
    kMember,   // before a key, or the }
    kKey,
    kColon,
    kValueBegin,
    kValue,
    kAfter,  // behind the }
  };
  enum class Member { kName, kArguments, kOther };
  enum class Shape { kScalar, kString, kNested };

  // `opener`: what stands before the object, for the case that there is none.
  void enter(std::string_view opener) {
    state_ = State::kObject;
    raw_ = opener;
    begun_ = in_string_ = false;
    name_.clear();
    arguments_.clear();
    has_arguments_ = stray_ = false;
  }

  // The call's text has ended with `closer`.
  void leave(std::string_view closer) {
    if (state_ == State::kValue && begun_ && member_ == Member::kArguments) {
      calls_.arguments(std::exchange(value_, {}));
    }
    if (!begun_) {
      content_.text(raw_);
      content_.text(closer);
    }
    raw_.clear();
    value_.clear();
    in_string_ = false;
    state_ = State::kContent;
  }

  void begin_call() {
    content_.before_call();
    calls_.begin(std::exchange(name_, {}));
    calls_.arguments(std::exchange(arguments_, {}));
    begun_ = true;
    raw_.clear();
  }

  void scan(std::string_view piece) {
    for (size_t i = 0; i < piece.size();) {
      if (state_ == State::kContent) {
        content_.text(piece.substr(i));
        return;
      }
      if (state_ == State::kValue && member_ == Member::kArguments && begun_ &&
          shape_ == Shape::kNested) {
        const size_t end = i + scan_nested(piece.substr(i));
        calls_.arguments(piece.substr(i, end - i));
        i = end;
        continue;
      }
      step(piece[i++]);
    }
  }

  // Not a call, or text behind one: content.
  void give_up(char c) {
    if (!begun_) {
      content_.text(std::exchange(raw_, {}));  // holds c
    } else {
      content_.text({&c, 1});
      stray_ = true;
    }
    in_string_ = false;
    state_ = State::kContent;
  }

  void step(char c) {
    last_ = c;
    if (!begun_) raw_ += c;
    const bool space = kWhitespace.find(c) != std::string_view::npos;
    switch (state_) {
      case State::kObject:
        if (space) return;
        if (c != '{') return give_up(c);
        state_ = State::kMember;
        return;
      case State::kMember:
        if (space || c == ',') return;
        if (c == '}') return finish_object();
        if (c != '"') return give_up(c);
        key_.clear();
        in_string_ = true;
        escape_ = false;
        state_ = State::kKey;
        return;
      case State::kKey:
        if (c == '"' && !escape_) {
          in_string_ = false;
          member_ = key_ == "name"                                ? Member::kName
                    : key_ == "arguments" || key_ == "parameters" ? Member::kArguments
                                                                  : Member::kOther;
          if (member_ == Member::kArguments && has_arguments_) member_ = Member::kOther;
          if (member_ == Member::kName && (begun_ || !name_.empty())) member_ = Member::kOther;
          state_ = State::kColon;
          return;
        }
        escape_ = c == '\\' && !escape_;
        key_ += c;
        return;
      case State::kColon:
        if (space) return;
        if (c != ':') return give_up(c);
        state_ = State::kValueBegin;
        return;
      case State::kValueBegin:
        if (space) return;
        begin_value(c);
        return;
      case State::kValue:
        step_value(c);
        return;
      case State::kAfter:
        if (space) return;
        if (c != '{') return give_up(c);
        enter("{");
        state_ = State::kMember;
        return;
      case State::kContent:
        return;
    }
  }

  void begin_value(char c) {
    if (c == ',' || c == '}' || c == ']' || c == ':') return give_up(c);
    state_ = State::kValue;
    value_.clear();
    depth_ = 0;
    escape_ = false;
    shape_ = c == '"' ? Shape::kString : c == '{' || c == '[' ? Shape::kNested : Shape::kScalar;
    if (member_ == Member::kName && shape_ != Shape::kString) return give_up(c);
    if (member_ == Member::kArguments) {
      has_arguments_ = true;
      if (!name_.empty()) begin_call();
    }
    step_value(c);
  }

  void step_value(char c) {
    if (shape_ == Shape::kScalar) {
      if (c == ',' || c == '}' || kWhitespace.find(c) != std::string_view::npos) {
        finish_value();
        if (c == '}') finish_object();
      } else {
        value_ += c;
      }
      return;
    }
    const bool done = scan_nested({&c, 1}) == 1 && state_ == State::kMember;
    if (begun_ && member_ == Member::kArguments && shape_ == Shape::kNested) {
      calls_.arguments({&c, 1});
      return;
    }
    value_ += c;
    if (done) finish_value();
  }

  // Goes through a string, object or array up to its end, where state_ becomes kMember; returns the
  // length read. Counts brackets without telling them apart: what stands between them is not ours.
  size_t scan_nested(std::string_view piece) {
    for (size_t i = 0; i < piece.size(); ++i) {
      const char c = last_ = piece[i];
      if (in_string_) {
        if (c == '"' && !escape_) in_string_ = false;
        escape_ = c == '\\' && !escape_;
      } else if (c == '"') {
        in_string_ = true;
      } else if (c == '{' || c == '[') {
        ++depth_;
      } else if (c == '}' || c == ']') {
        --depth_;
      }
      if (depth_ == 0 && !in_string_) {
        state_ = State::kMember;
        return i + 1;
      }
    }
    return piece.size();
  }

  void finish_value() {
    state_ = State::kMember;
    if (member_ == Member::kName) {
      auto name = parse_json(value_, "name");
      if (!name || !name->is_string() || name->get_ref<const std::string&>().empty()) {
        content_.text(std::exchange(raw_, {}));
        state_ = State::kContent;
        return;
      }
      name_ = name->get<std::string>();
      if (has_arguments_) begin_call();
    } else if (member_ == Member::kArguments) {
      std::string text = std::exchange(value_, {});
      if (shape_ == Shape::kString) {  // JSON within a string
        auto inner = parse_json(text, "arguments");
        if (inner) text = inner->get<std::string>();
      } else if (text == "null") {
        text = "{}";
      }
      if (begun_) {
        calls_.arguments(text);
      } else {
        arguments_ = std::move(text);
      }
    }
  }

  void finish_object() {
    if (!begun_ && name_.empty()) {
      content_.text(std::exchange(raw_, {}));
      state_ = State::kContent;
      return;
    }
    if (!begun_) {
      arguments_ = "{}";
      begin_call();
    }
    state_ = State::kAfter;
  }

  ContentWriter content_;
  CallWriter calls_;
  State state_ = State::kContent;
  std::string raw_;  // the call's text until it is a call
  std::string name_, key_, value_, arguments_;
  Member member_ = Member::kOther;
  Shape shape_ = Shape::kScalar;
  int64_t depth_ = 0;
  char last_ = 0;  // read within a call
  bool begun_ = false, has_arguments_ = false;
  bool in_string_ = false, escape_ = false;
  bool stray_ = false;          // content stands in a call, whose </tool_call> is to come
  bool end_in_string_ = false;  // </tool_call> was read in a string; what follows decides
};

}  // namespace

std::unique_ptr<MarkupStage> make_hermes_stage(OutputDelta& out) {
  return std::make_unique<HermesStage>(out);
}

}  // namespace lk
