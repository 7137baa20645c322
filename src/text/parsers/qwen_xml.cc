#include "text/parsers/qwen_xml.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace lk {
namespace {

constexpr size_t kMaxName = 256;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kWhitespace) == std::string_view::npos;
}

class QwenXmlStage final : public MarkupStage {
 public:
  QwenXmlStage(OutputDelta& out, ToolTypes types)
      : types_(std::move(types)), content_(out), calls_(out) {}

  void text(std::string_view piece) override {
    while (!piece.empty()) {
      switch (state_) {
        case State::kContent:
          content_.text(piece);
          return;
        case State::kOpened: {
          const size_t first = std::min(piece.find_first_not_of(kWhitespace), piece.size());
          raw_ += piece.substr(0, first);
          piece.remove_prefix(first);
          if (!piece.empty()) give_up();
          break;
        }
        case State::kFunctionName:
        case State::kParameterName:
          piece.remove_prefix(read_name(piece));
          break;
        case State::kFunction:
          stray_ += piece;
          return;
        case State::kValue:
          value_ += piece;
          return;
      }
    }
  }

  void tag(Tag tag) override {
    switch (state_) {
      case State::kContent:
        if (tag == Tag::kCall || tag == Tag::kFunction) {
          raw_.clear();
          enclosed_ = tag == Tag::kCall || ended_;
          ended_ = false;
          state_ = State::kOpened;
          if (tag == Tag::kCall) {
            raw_ = tag_text(tag);
          } else {
            begin_name(tag, State::kFunctionName);
          }
        } else if (tag == Tag::kCallEnd && ended_) {
          ended_ = false;
        } else {
          content_.text(tag_text(tag));
        }
        return;
      case State::kOpened:
        if (tag == Tag::kFunction) {
          begin_name(tag, State::kFunctionName);
          return;
        }
        break;
      case State::kFunctionName:
        break;
      case State::kFunction:
        in_function(tag);
        return;
      case State::kParameterName:
        stray_ += std::exchange(raw_, {});
        state_ = State::kFunction;
        in_function(tag);
        return;
      case State::kValue:
        in_value(tag);
        return;
    }
    give_up();
    this->tag(tag);  // once: the state is kContent
  }

  void end(std::string_view held, bool by_model) override {
    const bool in_call =
        state_ == State::kFunction || state_ == State::kParameterName || state_ == State::kValue;
    if (!in_call || by_model) text(held);  // at a limit, the beginning of the closing tag
    if (state_ == State::kOpened || state_ == State::kFunctionName) give_up();
    if (state_ == State::kValue && !by_model) {
      std::string open = types_.to_json(function_, parameter_, trimmed_value());
      if (open.starts_with('"')) open.pop_back();
      begin_argument();
      calls_.arguments(open);
    } else if (state_ == State::kValue) {
      end_value();
    }
    if (in_call && by_model) {
      if (state_ == State::kParameterName) stray_ += std::exchange(raw_, {});
      end_function();
    } else if (!is_blank(stray_)) {
      content_.text(stray_);
    }
    content_.end();
  }

 private:
  enum class State {
    kContent,
    kOpened,  // behind <tool_call>
    kFunctionName,
    kFunction,  // between parameters
    kParameterName,
    kValue,
  };

  // What was read of a call is none.
  void give_up() {
    content_.text(std::exchange(raw_, {}));
    state_ = State::kContent;
  }

  void begin_name(Tag tag, State state) {
    raw_ += tag_text(tag);
    name_begin_ = raw_.size();
    state_ = state;
  }

  // Reads up to the ">" of a name; returns the length read.
  size_t read_name(std::string_view piece) {
    for (size_t i = 0; i < piece.size(); ++i) {
      const char c = piece[i];
      const size_t length = raw_.size() - name_begin_;
      if (c == '>' && length > 0) {
        end_name(raw_.substr(name_begin_));
        return i + 1;
      }
      if (c == '\n' || c == '>' || length >= kMaxName) {
        if (state_ == State::kFunctionName) {
          give_up();
        } else {
          stray_ += std::exchange(raw_, {});
          state_ = State::kFunction;
        }
        return i;
      }
      raw_ += c;
    }
    return piece.size();
  }

  void end_name(std::string name) {
    if (state_ == State::kParameterName) {
      parameter_ = std::move(name);
      value_.clear();
      raw_.clear();
      state_ = State::kValue;
      return;
    }
    if (!enclosed_ && !types_.offers(name)) {
      raw_ += '>';
      give_up();
      return;
    }
    raw_.clear();
    content_.before_call();
    function_ = name;
    calls_.begin(std::move(name));
    stray_.clear();
    arguments_ = 0;
    state_ = State::kFunction;
  }

  void in_function(Tag tag) {
    switch (tag) {
      case Tag::kParameter:
        begin_name(tag, State::kParameterName);
        break;
      case Tag::kFunctionEnd:
        end_function();
        ended_ = true;
        break;
      case Tag::kCallEnd:
        end_function();
        break;
      case Tag::kCall:
      case Tag::kFunction:
        end_function();
        ended_ = true;
        this->tag(tag);  // once: the state is kContent
        break;
      default:
        stray_ += tag_text(tag);
    }
  }

  void in_value(Tag tag) {
    const bool line_begins = value_.empty() || value_.back() == '\n';
    switch (tag) {
      case Tag::kParameterEnd:
        end_value();
        return;
      case Tag::kCallEnd: {
        // </function> within a line, and now the call ends: it was meant.
        const size_t last = value_.find_last_not_of(kWhitespace);
        const std::string_view closer = tag_text(Tag::kFunctionEnd);
        if (last != std::string::npos &&
            std::string_view(value_).substr(0, last + 1).ends_with(closer)) {
          value_.resize(last + 1 - closer.size());
        }
        break;
      }
      case Tag::kParameter:
      case Tag::kFunctionEnd:
        if (line_begins) break;
        [[fallthrough]];
      default:
        value_ += tag_text(tag);
        return;
    }
    end_value();
    in_function(tag);
  }

  // The format puts one line break on each side.
  std::string_view trimmed_value() const {
    std::string_view value = value_;
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    return value;
  }

  void begin_argument() {
    calls_.arguments(arguments_++ == 0 ? "{" : ", ");
    calls_.arguments(json_string(parameter_));
    calls_.arguments(": ");
  }

  void end_value() {
    begin_argument();
    calls_.arguments(types_.to_json(function_, parameter_, trimmed_value()));
    value_.clear();
    state_ = State::kFunction;
  }

  void end_function() {
    state_ = State::kContent;
    std::string stray = std::exchange(stray_, {});
    if (arguments_ > 0) {
      calls_.arguments("}");
    } else if (const size_t first = stray.find_first_not_of(kWhitespace);
               first != std::string::npos && stray[first] == '{' && Json::accept(stray)) {
      calls_.arguments(std::exchange(stray, {}));
    } else {
      calls_.arguments("{}");
    }
    if (!is_blank(stray)) content_.text(stray);
  }

  const ToolTypes types_;
  ContentWriter content_;
  CallWriter calls_;
  State state_ = State::kContent;
  std::string raw_;        // tags and names that may begin a call or a parameter
  size_t name_begin_ = 0;  // in raw_
  std::string function_, parameter_, value_;
  std::string stray_;      // text between parameters
  int arguments_ = 0;      // written of the call
  bool enclosed_ = false;  // the call stands in <tool_call>
  bool ended_ = false;     // a function has ended, its </tool_call> may come
};

}  // namespace

std::unique_ptr<MarkupStage> make_qwen_xml_stage(OutputDelta& out, ToolTypes types) {
  return std::make_unique<QwenXmlStage>(out, std::move(types));
}

}  // namespace lk
