#include "server/event_log.h"

#include <fmt/format.h>

namespace lk {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSameFailure{10};  // one failure again and again is told so often
constexpr size_t kMostFailures = 1000;            // names remembered

std::string_view name_of(AdapterEvent::Kind kind) {
  switch (kind) {
    case AdapterEvent::Kind::kLoaded:
      return "adapter_loaded";
    case AdapterEvent::Kind::kReloaded:
      return "adapter_reloaded";
    case AdapterEvent::Kind::kReplaced:
      return "adapter_replaced";
    case AdapterEvent::Kind::kEvicted:
      return "adapter_evicted";
    case AdapterEvent::Kind::kUnloaded:
      return "adapter_unloaded";
    case AdapterEvent::Kind::kFailed:
      break;
  }
  return "adapter_load_failed";
}

std::string_view name_of(AdapterEvent::Asker asker) {
  switch (asker) {
    case AdapterEvent::Asker::kCall:
      return "load_lora_adapter";
    case AdapterEvent::Asker::kDirectory:
      return "lora-dir";
    case AdapterEvent::Asker::kRequest:
      break;
  }
  return "request";
}

std::string event_line(std::string_view event) {
  std::string line = line_begin();
  append_field(line, "event", event);
  return line;
}

std::string drain_line(std::string_view event, const HttpCounters& http) {
  std::string line = event_line(event);
  append_number(line, "open_requests", http.exchanges);
  append_number(line, "connections", http.connections);
  return line;
}

}  // namespace

bool EventLog::is_new(const std::string& name, const std::string& error, uint64_t& repeated) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (failures_.size() > kMostFailures) failures_.clear();
  Failure& last = failures_[name];
  if (last.error == error && now < last.told + kSameFailure) {
    ++last.repeated;
    return false;
  }
  repeated = last.error == error ? last.repeated : 0;
  last = {error, now, 0};
  return true;
}

void EventLog::on_adapter(const AdapterEvent& event) {
  using Kind = AdapterEvent::Kind;
  uint64_t repeated = 0;
  if (event.kind == Kind::kFailed && !is_new(event.name, event.error, repeated)) return;
  std::string line = event_line(name_of(event.kind));
  append_field(line, "adapter", event.name);
  if (event.kind == Kind::kEvicted || event.kind == Kind::kUnloaded) {
    append_field(line, "version", fmt::format("{:016x}", event.identity));
    // Its memory is free once they are done.
    if (event.kind == Kind::kUnloaded)
      append_number(line, "in_use", static_cast<uint64_t>(event.in_use));
    return writer_.write(std::move(line));
  }
  append_field(line, "by", name_of(event.asker));
  if (event.kind == Kind::kFailed) {
    if (repeated > 0) append_number(line, "repeated", repeated);
    append_field(line, "error", event.error);
    return writer_.write(std::move(line));
  }
  append_field(line, "version", fmt::format("{:016x}", event.identity));
  if (event.before != 0 && event.before != event.identity)
    append_field(line, "was", fmt::format("{:016x}", event.before));
  append_number(line, "rank", static_cast<uint64_t>(event.max_rank));
  append_number(line, "bytes", event.bytes);
  append_seconds(line, "seconds", event.load_seconds);
  append_field(line, "path", event.path);
  writer_.write(std::move(line));
}

void EventLog::on_refused_load(std::string_view id, const std::string& name,
                               const ApiError& error) {
  std::string line = event_line(name_of(AdapterEvent::Kind::kFailed));
  append_field(line, "id", id);
  append_field(line, "adapter", name);
  append_field(line, "by", name_of(AdapterEvent::Asker::kCall));
  append_field(line, "status", std::to_string(error.status));
  append_field(line, "error", error.message);
  writer_.write(std::move(line));
}

void EventLog::on_accept_trouble(const AcceptTrouble& trouble) {
  std::string line = event_line(trouble.reason.empty() ? "accept_recovered" : "accept_failed");
  append_number(line, "failed", trouble.failed);
  append_number(line, "connections", trouble.connections);
  if (!trouble.reason.empty()) append_field(line, "error", trouble.reason);
  writer_.write(std::move(line));
}

void EventLog::on_engine_ended(std::string_view fault) {
  std::string line = event_line("engine_ended");
  append_field(line, "error", fault);
  writer_.write(std::move(line));
}

void EventLog::on_drain_started(const HttpCounters& http) {
  writer_.write(drain_line("drain_started", http));
}

void EventLog::on_drain_cut(const HttpCounters& http) {
  writer_.write(drain_line("drain_cut", http));
}

void EventLog::on_drain_finished(const HttpCounters& http, Clock::duration time) {
  std::string line = drain_line("drain_finished", http);
  append_seconds(line, "seconds", std::chrono::duration<double>(time).count());
  writer_.write(std::move(line));
}

}  // namespace lk
