// The output of a response: items that open and close as the text comes, and the events that tell
// so. Used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"

namespace lk {

class ResponseItems {
 public:
  explicit ResponseItems(bool streams) : streams_(streams) {}

  // `out` gets events if it streams. `logprobs`: entries of the tokens that brought the content.
  void take(const OutputDelta& delta, std::string_view logprobs, std::string& out);
  // The answer has ended; `complete` is false if it was cut. An answer without items gets an empty
  // message.
  void finish(bool complete, std::string& out);

  // The items as a JSON list.
  void append_list(std::string& out) const;
  // Begins an event: `event: TYPE\ndata: {"type": TYPE, "sequence_number": N`.
  void begin_event(std::string_view type, std::string& out);

 private:
  enum class Kind : uint8_t { kReasoning, kMessage, kCall };
  struct Item {
    Kind kind;
    std::string id, call_id, name;
    std::string text;      // or arguments
    std::string logprobs;  // entries, of a message
    std::string status;    // "in_progress", "completed", "incomplete"
    std::string place;     // ,"item_id": …,"output_index": …[,"content_index": 0]
  };

  Item& open(Kind kind, std::string name, std::string& out);
  void close(std::string_view status, std::string& out);
  void add_text(Kind kind, std::string_view text, std::string_view logprobs, std::string& out);
  void add_call(const ToolCallDelta& call, std::string& out);
  void item_event(std::string_view type, std::string& out);
  void part_event(std::string_view type, const Item& part, std::string& out);
  static void append_item(std::string& out, const Item& item);
  static void append_part(std::string& out, const Item& item);

  bool streams_;
  std::vector<Item> items_;
  bool open_ = false;  // the last item
  int call_ = -1;      // index of the call that is open
  int64_t sequence_ = 0;
};

}  // namespace lk
