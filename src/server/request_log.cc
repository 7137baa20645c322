#include "server/request_log.h"

#include <chrono>

namespace lk {
namespace {

constexpr size_t kLongestPrompt = 64 << 10;

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::string line_of(std::string_view id) {
  std::string line = line_begin();
  append_field(line, "id", id);
  return line;
}

}  // namespace

void RequestLog::on_access(const AccessRecord& access) {
  std::string line = line_of(access.id);
  append_field(line, "client", access.client);
  append_field(line, "method", access.method);
  append_field(line, "path", access.path);
  append_field(line, "status", std::to_string(access.status));
  append_seconds(line, "seconds", seconds(access.time));
  writer_.write(std::move(line));
}

void RequestLog::on_generation(const GenerationRecord& record) {
  if (record.submitted == std::chrono::steady_clock::time_point()) return;
  std::string line = line_of(record.id);
  append_field(line, "model", record.model);
  append_number(line, "prompt_tokens", record.prompt_tokens);
  append_number(line, "cached_tokens", record.cached_tokens);
  append_field(line, "output_tokens", std::to_string(record.output_tokens));
  append_field(line, "finish", record.finish);
  if (record.first_token != std::chrono::steady_clock::time_point()) {
    append_seconds(line, "first_token", seconds(record.first_token - record.arrived));
  }
  append_seconds(line, "seconds", seconds(record.ended - record.arrived));
  writer_.write(std::move(line));
}

void RequestLog::on_prompt(std::string_view id, std::string_view body) {
  std::string line = line_of(id);
  append_field(line, "body", body.substr(0, kLongestPrompt));
  writer_.write(std::move(line));
}

}  // namespace lk
