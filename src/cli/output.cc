#include "cli/output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

namespace lk {
namespace {

volatile std::sig_atomic_t interrupt_seen = 0;

void on_interrupt(int) { interrupt_seen = 1; }

}  // namespace

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
      print_error(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
    }
  }
}

Status check_standard_streams() {
  // A write that fails says so in its result: a reader that left, a limit on the size of files.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    if (fd == STDOUT_FILENO) return invalid("standard output is closed");
    // The lowest free number is taken: `fd`, as those below are open.
    if (open("/dev/null", O_RDWR) < 0) return invalid("cannot open /dev/null");
  }
  return {};
}

void print_error(std::string_view message) {
  write_to_stderr(fmt::format("lorikeet: {}\n", message));
}

void print_warning(std::string_view message) {
  write_to_stderr(fmt::format("lorikeet: warning: {}\n", message));
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
  write_to_stderr(fmt::format("\r{}\x1b[K", text));
  shown_ = true;
}

void StatusLine::clear() {
  if (!shown_) return;
  write_to_stderr("\r\x1b[K");
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
