#include "server/request_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>

namespace lk {
namespace {

constexpr int kMostWaiting = 10'000;
constexpr size_t kLongestPrompt = 64 << 10;

void append_seconds(std::string& line, std::string_view key,
                    std::chrono::steady_clock::duration time) {
  append_field(line, key, fmt::format("{:.6f}", std::chrono::duration<double>(time).count()));
}

std::string line_begin(std::string_view id) {
  const auto now = std::chrono::system_clock::now();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  std::string line =
      fmt::format("time={:%FT%T}.{:03d}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                  ms.count() % 1000);
  append_field(line, "id", id);
  return line;
}

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    text.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

void append_field(std::string& line, std::string_view key, std::string_view value) {
  const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
  });
  line.append(" ").append(key).append("=");
  line +=
      plain ? std::string(value) : Json(value).dump(-1, ' ', true, Json::error_handler_t::replace);
}

struct RequestLog::Impl {
  std::atomic<int> waiting = 0;
  std::atomic<uint64_t> dropped = 0;
  WorkPool writer{1};

  void write(std::string line) {
    if (waiting >= kMostWaiting) {
      ++dropped;
      return;
    }
    ++waiting;
    line += '\n';
    writer.post([this, line = std::move(line)] {
      --waiting;
      if (const uint64_t count = dropped.exchange(0); count != 0) {
        write_all(fmt::format("{} lines of the request log were dropped\n", count));
      }
      write_all(line);
    });
  }
};

RequestLog::RequestLog() : impl_(std::make_unique<Impl>()) {}
RequestLog::~RequestLog() = default;

void RequestLog::on_access(const AccessRecord& access) {
  std::string line = line_begin(access.id);
  append_field(line, "client", access.client);
  append_field(line, "method", access.method);
  append_field(line, "path", access.path);
  append_field(line, "status", std::to_string(access.status));
  append_seconds(line, "seconds", access.time);
  impl_->write(std::move(line));
}

void RequestLog::on_generation(const GenerationRecord& record) {
  if (record.submitted == std::chrono::steady_clock::time_point()) return;
  std::string line = line_begin(record.id);
  append_field(line, "model", record.model);
  append_field(line, "prompt_tokens", std::to_string(record.prompt_tokens));
  append_field(line, "cached_tokens", std::to_string(record.cached_tokens));
  append_field(line, "output_tokens", std::to_string(record.output_tokens));
  append_field(line, "finish", record.finish);
  if (record.first_token != std::chrono::steady_clock::time_point()) {
    append_seconds(line, "first_token", record.first_token - record.arrived);
  }
  append_seconds(line, "seconds", record.ended - record.arrived);
  impl_->write(std::move(line));
}

void RequestLog::on_prompt(std::string_view id, std::string_view body) {
  std::string line = line_begin(id);
  append_field(line, "body", body.substr(0, kLongestPrompt));
  impl_->write(std::move(line));
}

}  // namespace lk
