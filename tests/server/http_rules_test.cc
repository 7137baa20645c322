// What HTTP/1.1 asks of a server beside the requests themselves: Host, Expect, lengths, clients
// that end their side, and a server without descriptors.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>

#include "tests/server/http_fixture.h"
#include "tests/server/raw_client.h"

namespace lk {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Http, RefusesOtherExpectations) {
  HttpFixture http({}, echo);
  for (const char* expected : {"200-ok", "100-continue, more", "yes"}) {
    RawClient client(http.port());
    ASSERT_TRUE(client.send(fmt::format(
        "POST /e HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: {}\r\n\r\n", expected)));
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, 417) << expected;
    EXPECT_NE(answer.body.find("100-continue"), std::string::npos);
  }
  // As every value of this header, in any case; and to HTTP/1.0 it means nothing.
  RawClient upper(http.port()), old(http.port());
  ASSERT_TRUE(upper.send(post_request("/e", "ok", "Expect: 100-Continue\r\n")));
  EXPECT_EQ(upper.answer().status, 200);
  ASSERT_TRUE(old.send("POST /e HTTP/1.0\r\nContent-Length: 2\r\nExpect: yes\r\n\r\nok"));
  EXPECT_EQ(old.answer().body, "POST /e ok");
}

TEST(Http, WantsAHost) {
  HttpFixture http({}, echo);
  const std::pair<std::string, int> cases[] = {
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nok", 400},
      {"GET http://t/ HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 200},
      {"GET / HTTP/1.1\r\nHost: t:8000\r\n\r\n", 200},
      {"GET / HTTP/1.1\r\nhOST: [::1]:8000\r\n\r\n", 200},
      {"GET http://t/ HTTP/1.1\r\nHost: t\r\n\r\n", 200},
      {"GET / HTTP/1.0\r\n\r\n", 200}};
  for (const auto& [bytes, status] : cases) {
    RawClient client(http.port());
    ASSERT_TRUE(client.send(bytes));
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, status) << bytes;
    EXPECT_EQ(answer.body.find("Host header") != std::string::npos, status == 400) << answer.body;
  }
}

TEST(Http, LengthsThatAreNoneOrTwoAreRefused) {
  HttpFixture http({}, echo);
  for (const char* lengths :
       {"Content-Length: 1\r\nContent-Length: 2\r\n", "Content-Length: 1, 2\r\n",
        "Content-Length: +1\r\n", "Content-Length: 1 1\r\n", "Content-Length: 0x1\r\n",
        "Content-Length:\r\n", "Content-Length: 1.0\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n"}) {
    RawClient client(http.port());
    ASSERT_TRUE(client.send(fmt::format("POST / HTTP/1.1\r\nHost: t\r\n{}\r\na", lengths)));
    EXPECT_EQ(client.answer().status, 400) << lengths;
    EXPECT_TRUE(client.closed_within(seconds(5)));
  }
}

// The client ends its side after what it asks for, and gets all of it.
TEST(Http, AnswersClientsThatSendNoMore) {
  std::atomic<int> gone = 0;
  std::vector<std::shared_ptr<Exchange>> held;
  HttpFixture http({}, [&](std::shared_ptr<Exchange> exchange) {
    if (exchange->request().path == "/now") return echo(exchange);
    exchange->on_gone([&] { ++gone; });
    held.push_back(std::move(exchange));
  });
  const auto waits = [&](size_t count) {
    return wait_for([&] { return http.on_loop([&] { return held.size(); }) == count; });
  };
  for (const char* version : {"1.1", "1.0"}) {
    const std::string head = fmt::format(" HTTP/{}\r\nHost: t\r\n\r\n", version);
    RawClient now(http.port()), whole(http.port()), stream(http.port());
    ASSERT_TRUE(now.send("GET /now" + head));
    now.half_close();
    EXPECT_EQ(now.answer().body, "GET /now ");
    EXPECT_TRUE(now.closed_within(seconds(5)));

    ASSERT_TRUE(whole.send("GET /later" + head) && stream.send("GET /stream" + head));
    whole.half_close();
    stream.half_close();
    ASSERT_TRUE(waits(2));
    std::this_thread::sleep_for(milliseconds(50));
    http.on_loop([&] {
      for (const auto& exchange : held) {
        if (exchange->request().path == "/later") {
          echo(exchange);
        } else {
          exchange->begin_events();
          exchange->write("data: 1\n\n");
        }
      }
      return 0;
    });
    EXPECT_EQ(whole.answer().body, "GET /later ") << version;
    EXPECT_TRUE(whole.closed_within(seconds(5)));
    std::this_thread::sleep_for(milliseconds(50));
    http.on_loop([&] {
      for (const auto& exchange : std::exchange(held, {})) {
        if (exchange->request().path == "/later") continue;
        exchange->write("data: 2\n\n");
        exchange->end_events();
      }
      return 0;
    });
    const auto events = stream.answer();
    EXPECT_EQ(events.status, 200);
    EXPECT_EQ(events.body, "data: 1\n\ndata: 2\n\n") << version;
    EXPECT_TRUE(stream.closed_within(seconds(5)));
  }
  EXPECT_EQ(gone, 0);
  EXPECT_TRUE(wait_for([&] { return http.counters().connections == 0; }));
}

TEST(Http, AnswersAllThatWasAskedBeforeTheEnd) {
  HttpFixture http({}, echo);
  RawClient many(http.port()), half(http.port()), idle(http.port());
  std::string all;
  for (int i = 0; i < 2000; ++i) all += post_request("/x", std::string(1000, 'b'));
  std::thread sender([&] {
    many.send(all);
    many.half_close();
  });
  int answers = 0;
  while (answers < 2000 && many.answer().status == 200) ++answers;
  sender.join();
  EXPECT_EQ(answers, 2000);
  EXPECT_TRUE(many.closed_within(seconds(5)));
  // An end within a request is told, one between requests needs no words.
  ASSERT_TRUE(
      half.send(get_request("/y") + "POST /z HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nab"));
  half.half_close();
  EXPECT_EQ(half.answer().body, "GET /y ");
  const auto cut = half.answer();
  EXPECT_EQ(cut.status, 400);
  EXPECT_NE(cut.body.find("before the request was complete"), std::string::npos);
  ASSERT_TRUE(idle.send(get_request("/i")));
  EXPECT_EQ(idle.answer().status, 200);
  idle.half_close();
  EXPECT_TRUE(idle.closed_within(seconds(5)));
}

TEST(Http, TakesConnectionsAgainWhenDescriptorsAreFree) {
  using Clock = std::chrono::steady_clock;
  std::mutex mutex;
  std::vector<std::pair<Clock::time_point, AcceptTrouble>> told;
  HttpFixture http({}, echo);
  http.on_loop([&] {
    http.server().on_accept_trouble([&](const AcceptTrouble& trouble) {
      const std::lock_guard lock(mutex);
      told.emplace_back(Clock::now(), trouble);
    });
    return 0;
  });
  const auto count_told = [&] {
    const std::lock_guard lock(mutex);
    return told.size();
  };
  const auto is_over = [&] {
    const std::lock_guard lock(mutex);
    return told.back().second.reason.empty();
  };
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  {
    // Both ends are in this process: the client has its descriptor, then nobody gets one.
    RawClient client;
    const int highest = dup(0);
    close(highest);
    const rlimit none{static_cast<rlim_t>(highest), before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    client.connect(http.port());
    client.send(get_request("/patient"));
    // Tries go on all the while.
    EXPECT_TRUE(wait_for([&] { return count_told() >= 2; }));
    EXPECT_EQ(http.counters().accepted, 0u);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(client.answer().body, "GET /patient ");
  }
  ASSERT_GE(count_told(), 2u);
  EXPECT_TRUE(wait_for(is_over));
  const std::lock_guard lock(mutex);
  EXPECT_EQ(told[0].second.failed, 1u);
  EXPECT_GT(told[1].second.failed, 3u);
  for (size_t i = 0; i + 1 < told.size(); ++i) {
    EXPECT_EQ(told[i].second.reason, std::strerror(EMFILE));
    if (i > 0) {
      EXPECT_GE(told[i].first - told[i - 1].first, milliseconds(900)) << "a line a second";
    }
  }
}

// docs/serve.md names them.
TEST(Http, LimitsAreThoseThatAreTold) {
  const HttpOptions options;
  EXPECT_EQ(options.header_limit, size_t{16} << 10);
  EXPECT_EQ(options.body_limit, size_t{64} << 20);
  EXPECT_EQ(options.header_timeout, seconds(10));
  EXPECT_EQ(options.body_timeout, seconds(120));
  EXPECT_EQ(options.idle_timeout, seconds(180));
  std::ifstream file(std::string(LK_SOURCE_DIR) + "/docs/serve.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  for (const char* part : {"10 s", "120 s", "180 s", "64 MiB", "16 KiB"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace lk
