#include "cli/output.h"

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>

namespace lk {
namespace {

volatile std::sig_atomic_t interrupt_seen = 0;

void on_interrupt(int) { interrupt_seen = 1; }

}  // namespace

Output::Output() { std::signal(SIGPIPE, SIG_IGN); }

void Output::write(std::string_view text) {
  while (!closed_ && !text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd wait{STDOUT_FILENO, POLLOUT, 0};
      poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      closed_ = true;
    }
  }
}

void print_error(std::string_view message) { fmt::print(stderr, "lorikeet: {}\n", message); }

void print_warning(std::string_view message) {
  fmt::print(stderr, "lorikeet: warning: {}\n", message);
}

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // and no SA_RESTART: a blocked read returns
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return interrupt_seen != 0; }

StatusLine::StatusLine() : visible_(isatty(STDERR_FILENO) == 1) {}

bool StatusLine::due() {
  constexpr double kInterval = 0.2;
  if (!visible_ || now_seconds() - last_ < kInterval) return false;
  last_ = now_seconds();
  return true;
}

void StatusLine::show(const std::string& text) {
  if (!visible_) return;
  fmt::print(stderr, "\r{}\x1b[K", text);
  std::fflush(stderr);
  shown_ = true;
}

void StatusLine::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

std::string progress_bar(double share) {
  constexpr int kWidth = 20;
  const int filled = static_cast<int>(share * kWidth);
  return "[" + std::string(filled, '#') + std::string(kWidth - filled, ' ') + "]";
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lk
