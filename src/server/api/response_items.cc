#include "server/api/response_items.h"

#include "server/api/json_text.h"

namespace lk {

void ResponseItems::begin_event(std::string_view type, std::string& out) {
  out += "event: ";
  out += type;
  out += "\ndata: {\"type\":\"";
  out += type;
  out += R"(","sequence_number":)";
  append_integer(out, sequence_++);
}

void ResponseItems::append_part(std::string& out, const Item& item) {
  if (item.kind == Kind::kReasoning) {
    out += R"({"type":"reasoning_text","text":)";
    append_string(out, item.text);
    out += '}';
    return;
  }
  out += R"({"type":"output_text","text":)";
  append_string(out, item.text);
  out += R"(,"annotations":[],"logprobs":[)" + item.logprobs + "]}";
}

void ResponseItems::append_item(std::string& out, const Item& item) {
  const bool begun = item.status != "in_progress";
  out += R"({"id":")" + item.id + R"(","status":")" + item.status + R"(","type":)";
  if (item.kind == Kind::kCall) {
    out += R"("function_call","call_id":")" + item.call_id + R"(","name":)";
    append_string(out, item.name);
    out += R"(,"arguments":)";
    append_string(out, item.text);
    out += '}';
    return;
  }
  out += item.kind == Kind::kReasoning ? R"("reasoning","summary":[],"content":[)"
                                       : R"("message","role":"assistant","content":[)";
  if (begun) append_part(out, item);
  out += "]}";
}

void ResponseItems::append_list(std::string& out) const {
  out += '[';
  for (const Item& item : items_) {
    if (&item != items_.data()) out += ',';
    append_item(out, item);
  }
  out += ']';
}

void ResponseItems::item_event(std::string_view type, std::string& out) {
  begin_event(type, out);
  out += R"(,"output_index":)";
  append_integer(out, static_cast<int64_t>(items_.size()) - 1);
  out += R"(,"item":)";
  append_item(out, items_.back());
  out += "}\n\n";
}

void ResponseItems::part_event(std::string_view type, const Item& part, std::string& out) {
  begin_event(type, out);
  out += part.place + R"(,"part":)";
  append_part(out, part);
  out += "}\n\n";
}

ResponseItems::Item& ResponseItems::open(Kind kind, std::string name, std::string& out) {
  if (open_) close("completed", out);
  constexpr std::string_view kPrefix[] = {"rs_", "msg_", "fc_"};
  Item& item = items_.emplace_back();
  item.kind = kind;
  item.id = random_id(kPrefix[static_cast<size_t>(kind)]);
  item.name = std::move(name);
  item.status = "in_progress";
  if (kind == Kind::kCall) item.call_id = random_id("call_");
  open_ = true;
  if (!streams_) return item;
  item.place = R"(,"item_id":")" + item.id + R"(","output_index":)";
  append_integer(item.place, static_cast<int64_t>(items_.size()) - 1);
  if (kind != Kind::kCall) item.place += R"(,"content_index":0)";
  item_event("response.output_item.added", out);
  if (kind != Kind::kCall) part_event("response.content_part.added", item, out);
  return item;
}

void ResponseItems::close(std::string_view status, std::string& out) {
  Item& item = items_.back();
  item.status = status;
  open_ = false;
  call_ = -1;
  if (!streams_) return;
  switch (item.kind) {
    case Kind::kReasoning:
      begin_event("response.reasoning_text.done", out);
      out += item.place + R"(,"text":)";
      break;
    case Kind::kMessage:
      begin_event("response.output_text.done", out);
      out += item.place + R"(,"logprobs":[)" + item.logprobs + R"(],"text":)";
      break;
    case Kind::kCall:
      begin_event("response.function_call_arguments.done", out);
      out += item.place + R"(,"name":)";
      append_string(out, item.name);
      out += R"(,"arguments":)";
      break;
  }
  append_string(out, item.text);
  out += "}\n\n";
  if (item.kind != Kind::kCall) part_event("response.content_part.done", item, out);
  item_event("response.output_item.done", out);
}

void ResponseItems::add_text(Kind kind, std::string_view text, std::string_view logprobs,
                             std::string& out) {
  if (text.empty()) return;
  Item& item = open_ && items_.back().kind == kind ? items_.back() : open(kind, "", out);
  item.text += text;
  if (!logprobs.empty()) item.logprobs.append(item.logprobs.empty() ? "" : ",").append(logprobs);
  if (!streams_) return;
  begin_event(
      kind == Kind::kReasoning ? "response.reasoning_text.delta" : "response.output_text.delta",
      out);
  out += item.place;
  if (kind == Kind::kMessage) out.append(R"(,"logprobs":[)").append(logprobs) += ']';
  out += R"(,"delta":)";
  append_string(out, text);
  out += "}\n\n";
}

void ResponseItems::add_call(const ToolCallDelta& call, std::string& out) {
  if (!open_ || call_ != call.index) {
    open(Kind::kCall, call.name, out);
    call_ = call.index;
  }
  if (call.arguments.empty()) return;
  Item& item = items_.back();
  item.text += call.arguments;
  if (!streams_) return;
  begin_event("response.function_call_arguments.delta", out);
  out += item.place + R"(,"delta":)";
  append_string(out, call.arguments);
  out += "}\n\n";
}

void ResponseItems::take(const OutputDelta& delta, std::string_view logprobs, std::string& out) {
  add_text(Kind::kReasoning, delta.reasoning, {}, out);
  add_text(Kind::kMessage, delta.content, logprobs, out);
  for (const ToolCallDelta& call : delta.tool_calls) add_call(call, out);
}

void ResponseItems::finish(bool complete, std::string& out) {
  if (items_.empty()) open(Kind::kMessage, "", out);
  if (open_) close(complete ? "completed" : "incomplete", out);
}

}  // namespace lk
