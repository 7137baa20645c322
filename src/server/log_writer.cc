#include "server/log_writer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/stderr.h"
#include "server/http/io_loop.h"

namespace lk {
namespace {

constexpr int kMostWaiting = 10'000;

}  // namespace

struct LogWriter::Impl {
  Sink sink;
  std::atomic<int> waiting = 0;
  std::atomic<uint64_t> dropped = 0;
  WorkPool writer{1};
};

LogWriter::LogWriter(Sink sink) : impl_(std::make_unique<Impl>()) {
  impl_->sink = sink ? std::move(sink) : write_to_stderr;
}
LogWriter::~LogWriter() = default;

void LogWriter::write(std::string line) {
  if (impl_->waiting >= kMostWaiting) {
    ++impl_->dropped;
    return;
  }
  ++impl_->waiting;
  line += '\n';
  impl_->writer.post([impl = impl_.get(), line = std::move(line)] {
    --impl->waiting;
    if (const uint64_t count = impl->dropped.exchange(0); count != 0) {
      impl->sink(fmt::format("{} lines of the log were dropped\n", count));
    }
    impl->sink(line);
  });
}

void LogWriter::flush() {
  std::promise<void> done;
  impl_->writer.post([&done] { done.set_value(); });
  done.get_future().wait();
}

std::string line_begin() {
  const auto now = std::chrono::system_clock::now();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  return fmt::format("time={:%FT%T}.{:03d}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms.count() % 1000);
}

void append_field(std::string& line, std::string_view key, std::string_view value) {
  const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
  });
  line.append(" ").append(key).append("=");
  line +=
      plain ? std::string(value) : Json(value).dump(-1, ' ', true, Json::error_handler_t::replace);
}

void append_number(std::string& line, std::string_view key, uint64_t value) {
  append_field(line, key, std::to_string(value));
}

void append_seconds(std::string& line, std::string_view key, double seconds) {
  append_field(line, key, fmt::format("{:.6f}", seconds));
}

}  // namespace lk
