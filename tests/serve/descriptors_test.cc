// A server that runs out of file descriptors.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

#include "tests/serve/server_process.h"

namespace lk {
namespace {

namespace fs = std::filesystem;

// Leaves the server `free` descriptors beyond those that it has.
void limit_descriptors(const ServerProcess& server, rlim_t free) {
  const fs::directory_iterator open("/proc/" + std::to_string(server.pid()) + "/fd");
  const auto count = static_cast<rlim_t>(std::distance(begin(open), end(open)));
  const rlimit limit{count + free, count + free};
  ASSERT_EQ(prlimit(server.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
}

size_t lines_with(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

bool logged(const ServerProcess& server, const std::string& part) {
  for (int i = 0; i < 100 * test::kPatience; ++i) {
    if (server.log().find(part) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

TEST(Descriptors, WhenNoneIsLeftConnectionsWait) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the undefined-behaviour sanitizer opens a pipe to look at an object";
#endif
  ServerProcess server(
      {"--lora-dir", std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4/adapters"});
  ASSERT_TRUE(server.ready()) << server.log();
  const TaskRow row = task_rows("sql", 1)[0];
  limit_descriptors(server, 4);
  std::vector<int> idle;
  for (int i = 0; i < 12; ++i) idle.push_back(connect_loopback(server.port(), 5));
  EXPECT_TRUE(logged(server, "event=accept_failed failed=1 ")) << server.log();
  // One that was taken may ask; what needs a file says why it cannot be had, and that it may later.
  const std::string body = chat_body("sql", row.question).dump();
  const std::string text = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n\r\n" + body;
  ASSERT_EQ(write(idle[0], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  char answer[4096] = {};
  ASSERT_GT(read(idle[0], answer, sizeof answer - 1), 0);
  EXPECT_TRUE(std::string(answer).starts_with("HTTP/1.1 503 ")) << answer;
  EXPECT_NE(std::string(answer).find("Too many open files"), std::string::npos) << answer;

  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(2300));
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  const size_t lines = lines_with(server.log(), "event=accept_failed");
  EXPECT_GE(lines, 2u);
  EXPECT_LE(lines, 3 + static_cast<size_t>(passed.count())) << server.log();

  for (const int fd : idle) close(fd);
  EXPECT_EQ(
      chat_text(server.client(20).post("/v1/chat/completions", chat_body("sql", row.question))),
      row.answer);
  EXPECT_TRUE(logged(server, "event=accept_recovered")) << server.log();
  EXPECT_TRUE(logged(server, "event=adapter_loaded adapter=sql by=lora-dir")) << server.log();
}

}  // namespace
}  // namespace lk
