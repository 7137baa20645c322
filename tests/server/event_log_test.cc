// What a server writes to its log beside the requests.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <thread>

#include "tests/server/test_server.h"

namespace lk {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The lines of a server's log, as they come.
class Lines {
 public:
  LogWriter::Sink sink() {
    return [this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    };
  }
  // The first line after those found so far that holds all of `parts`, within 5 s; empty: none.
  std::string next(const std::vector<std::string>& parts) {
    for (int i = 0; i < 500; ++i) {
      {
        const std::lock_guard lock(mutex_);
        for (; seen_ < lines_.size(); ++seen_) {
          const std::string& line = lines_[seen_];
          if (std::all_of(parts.begin(), parts.end(),
                          [&](const auto& part) { return line.find(part) != line.npos; }))
            return lines_[seen_++];
        }
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    return {};
  }
  size_t count(const std::string& part) {
    const std::lock_guard lock(mutex_);
    return std::count_if(lines_.begin(), lines_.end(),
                         [&](const auto& line) { return line.find(part) != line.npos; });
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
  size_t seen_ = 0;
};

TEST(Server, LogsAdaptersThatComeAndGo) {
  Lines log;
  const std::string folder = fs::temp_directory_path() / fmt::format("lk_log_{}", ::getpid());
  fs::create_directories(folder + "/empty");
  for (const char* name : {"sql", "json", "math"})
    fs::copy(kModel + "/adapters/" + name, folder + "/" + name, fs::copy_options::recursive);
  TestServer::directory = folder;
  TestServer::max_resident = 2;
  {
    ServerOptions options;
    options.allow_runtime_lora = true;
    options.paths.roots = {folder};
    options.log_sink = log.sink();
    TestServer server(options);
    const auto use = [&](const std::string& name) {
      return server.post("/v1/completions", {{"model", name}, {"prompt", "a"}, {"max_tokens", 1}})
          .status;
    };
    EXPECT_EQ(use("sql"), 200);
    const std::string loaded = log.next({"event=adapter_loaded", "adapter=sql", "by=lora-dir"});
    for (const char* part : {"time=", "version=", "rank=8", "bytes=", "seconds=", "path="})
      EXPECT_NE(loaded.find(part), std::string::npos) << part << loaded;
    EXPECT_EQ(loaded.back(), '\n');
    EXPECT_EQ(use("json"), 200);
    EXPECT_EQ(use("math"), 200);
    EXPECT_NE(log.next({"event=adapter_evicted", "adapter=sql", "version="}), "");
    EXPECT_NE(log.next({"event=adapter_loaded", "adapter=math", "by=lora-dir"}), "");
    EXPECT_EQ(use("sql"), 200);
    EXPECT_NE(log.next({"event=adapter_evicted", "adapter=json"}), "");
    EXPECT_NE(log.next({"event=adapter_reloaded", "adapter=sql", "by=request"}), "");
    Json load = {{"lora_name", "sql"}, {"lora_path", folder + "/math"}, {"load_inplace", true}};
    EXPECT_EQ(server.post("/v1/load_lora_adapter", load).status, 200);
    EXPECT_NE(log.next({"event=adapter_replaced", "adapter=sql", "by=load_lora_adapter", " was="}),
              "");
    EXPECT_EQ(server.post("/v1/unload_lora_adapter", {{"lora_name", "sql"}}).status, 200);
    EXPECT_NE(log.next({"event=adapter_unloaded", "adapter=sql", "in_use=0"}), "");
    load = {{"lora_name", "late"}, {"lora_path", folder + "/json"}};
    EXPECT_EQ(server.post("/v1/load_lora_adapter", load).status, 200);
    EXPECT_NE(log.next({"event=adapter_loaded", "adapter=late", "by=load_lora_adapter"}), "");

    // Whoever asks for it again and again fills no disk.
    for (int i = 0; i < 20; ++i) EXPECT_EQ(use("empty"), 400);
    EXPECT_NE(log.next({"event=adapter_load_failed", "adapter=empty", "by=lora-dir",
                        "has no adapter_config.json"}),
              "");
    EXPECT_EQ(use("absent"), 404);
    for (const std::string& path : {folder + "/empty", folder + "/none", std::string("/etc")}) {
      load = {{"lora_name", "x"}, {"lora_path", path}};
      const auto refused = server.post("/v1/load_lora_adapter", load);
      EXPECT_GE(refused.status, 400);
      const std::string line = log.next({"event=adapter_load_failed", "adapter=x",
                                         "by=load_lora_adapter", "error=\"Loading lora x failed"});
      EXPECT_NE(line.find(" id=" + refused.header("x-request-id")), std::string::npos) << line;
      EXPECT_NE(line.find(fmt::format(" status={}", refused.status)), std::string::npos) << line;
    }
    EXPECT_EQ(log.count("adapter=empty"), 1u);
    EXPECT_EQ(log.count("absent"), 0u);
  }
  TestServer::directory.clear();
  TestServer::max_resident = 0;
  fs::remove_all(folder);
}

TEST(Server, LogsItsDrain) {
  for (const bool cut : {false, true}) {
    Lines log;
    {
      ServerOptions options;
      options.log_sink = log.sink();
      if (cut) options.shutdown_timeout = milliseconds(100);
      TestServer server(options);
      RawClient running(server.port);
      const Json body = {
          {"prompt", "a"}, {"max_tokens", 1000}, {"ignore_eos", true}, {"stream", true}};
      ASSERT_TRUE(running.send(post_request("/v1/completions", body.dump(), kJson)));
      ASSERT_NE(running.read_until("data: "), "");
      server.server().shut_down();
      EXPECT_NE(log.next({"event=drain_started", "open_requests=1"}), "");
      if (cut) {
        EXPECT_NE(log.next({"event=drain_cut", "open_requests=1"}), "");
      }
      EXPECT_NE(running.read_until("0\r\n\r\n", seconds(30)), "");
    }
    EXPECT_NE(log.next({"event=drain_finished", "open_requests=0", "seconds="}), "");
  }
}

}  // namespace
}  // namespace lk
