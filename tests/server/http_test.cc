#include <gtest/gtest.h>

#include "tests/server/http_fixture.h"
#include "tests/server/raw_client.h"

namespace lk {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Http, AnswersSeveralRequestsOnOneConnection) {
  HttpFixture http({}, echo);
  RawClient client(http.port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(post_request("/a%20b?x=1", "hello")));
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "POST /a b hello");
    EXPECT_EQ(answer.header("connection"), "keep-alive");
    EXPECT_FALSE(answer.header("x-request-id").empty());
  }
  EXPECT_EQ(http.counters().accepted, 1u);
}

TEST(Http, AnswersPipelinedRequestsInOrder) {
  // The first answer comes last: the others must wait for it.
  std::shared_ptr<Exchange> held;
  HttpFixture http({}, [&](std::shared_ptr<Exchange> exchange) {
    if (exchange->request().path == "/slow") {
      held = exchange;
    } else {
      echo(exchange);
    }
  });
  RawClient client(http.port());
  std::string all = get_request("/slow");
  for (int i = 0; i < 20; ++i) all += get_request("/" + std::to_string(i));
  ASSERT_TRUE(client.send(all));
  ASSERT_TRUE(wait_for([&] { return http.on_loop([&] { return held != nullptr; }); }));
  http.on_loop([&] {
    std::exchange(held, nullptr)->reply(200, "text/plain", "slow");
    return 0;
  });
  EXPECT_EQ(client.answer().body, "slow");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.answer().body, "GET /" + std::to_string(i) + " ");
}

TEST(Http, ReadsBytesAsTheyCome) {
  HttpFixture http({}, echo);
  RawClient client(http.port());
  for (const char c : post_request("/p", "12345")) ASSERT_TRUE(client.send({&c, 1}));
  EXPECT_EQ(client.answer().body, "POST /p 12345");
}

TEST(Http, ReadsChunkedBodies) {
  HttpFixture http({}, echo);
  RawClient client(http.port());
  ASSERT_TRUE(
      client.send("POST /c HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "5;x=y\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\nTrailer: t\r\n\r\n"));
  EXPECT_EQ(client.answer().body, "POST /c hello world");
  ASSERT_TRUE(client.send(get_request("/next")));
  EXPECT_EQ(client.answer().body, "GET /next ");
}

TEST(Http, AsksForTheBodyOfWhoWaits) {
  HttpFixture http({}, echo);
  RawClient client(http.port());
  ASSERT_TRUE(
      client.send("POST /e HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n"
                  "Expect: 100-continue\r\n\r\n"));
  EXPECT_TRUE(client.read_until("\r\n\r\n").starts_with("HTTP/1.1 100"));
  ASSERT_TRUE(client.send("ok"));
  EXPECT_EQ(client.answer().body, "POST /e ok");
}

TEST(Http, SpeaksHttp10) {
  HttpFixture http({}, [](std::shared_ptr<Exchange> exchange) {
    if (exchange->request().path != "/stream") return echo(exchange);
    exchange->begin_events();
    exchange->write("data: 1\n\n");
    exchange->end_events();
  });
  RawClient client(http.port());
  ASSERT_TRUE(client.send("GET /old HTTP/1.0\r\n\r\n"));
  const auto answer = client.answer();
  EXPECT_EQ(answer.body, "GET /old ");
  EXPECT_EQ(answer.header("connection"), "close");
  EXPECT_TRUE(client.closed_within(seconds(5)));
  RawClient kept(http.port());
  ASSERT_TRUE(kept.send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  EXPECT_EQ(kept.answer().header("connection"), "keep-alive");
  ASSERT_TRUE(kept.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  const auto stream = kept.answer();
  EXPECT_EQ(stream.body, "data: 1\n\n");
  EXPECT_EQ(stream.header("transfer-encoding"), "");
}

TEST(Http, HeadHasNoBody) {
  HttpFixture http({}, echo);
  RawClient client(http.port());
  ASSERT_TRUE(client.send("HEAD /h HTTP/1.1\r\nHost: t\r\n\r\n" + get_request("/next")));
  EXPECT_NE(client.read_until("\r\n\r\n").find("content-length: 8"), std::string::npos);
  EXPECT_EQ(client.answer().body, "GET /next ");
}

TEST(Http, RefusesWhatIsNoRequest) {
  HttpFixture http({}, echo);
  const std::pair<std::string, int> cases[] = {
      {"hello\r\n\r\n", 400},
      {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + "\r\n\r\n", 400},
      {"GET  /  HTTP/1.1\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET /%00 HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: t\r\nno colon\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nTransfer-Encoding: "
       "chunked\r\n\r\n0\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
       400},
      {"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: t\r\nA: " + std::string(20000, 'a') + "\r\n\r\n", 431},
      {"GET /" + std::string(20000, 'a') + " HTTP/1.1\r\nHost: t\r\n\r\n", 431},
      {"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
           std::string(40000, 'x'),
       431},
  };
  for (const auto& [bytes, status] : cases) {
    RawClient client(http.port());
    ASSERT_TRUE(client.send(bytes));
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, status) << bytes.substr(0, 80);
    EXPECT_EQ(answer.header("connection"), "close");
    EXPECT_NE(answer.body.find("\"error\""), std::string::npos);
    EXPECT_TRUE(client.closed_within(seconds(5)));
  }
  RawClient good(http.port());
  ASSERT_TRUE(good.send(get_request("/still")));
  EXPECT_EQ(good.answer().body, "GET /still ");
}

TEST(Http, BoundsBodies) {
  HttpOptions options;
  options.body_limit = 1000;
  HttpFixture http(options, echo);
  {
    RawClient client(http.port());
    ASSERT_TRUE(client.send(post_request("/b", std::string(1000, 'b'))));
    EXPECT_EQ(client.answer().body.size(), 8 + 1000u);
    ASSERT_TRUE(client.send("POST /b HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n"));
    EXPECT_EQ(client.answer().status, 413);
  }
  // Chunks add up; what still comes afterwards must not take the answer away.
  RawClient client(http.port());
  std::string body = "POST /b HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 2000; ++i) body += "64\r\n" + std::string(100, 'c') + "\r\n";
  client.send(body);
  EXPECT_EQ(client.answer().status, 413);
}

TEST(Http, BoundsAllBodiesTogether) {
  HttpOptions options;
  options.bodies_limit = 10'000;
  HttpFixture http(options, echo);
  RawClient first(http.port()), second(http.port());
  ASSERT_TRUE(first.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 9000\r\n\r\n" +
                         std::string(8000, 'x')));
  ASSERT_TRUE(wait_for([&] { return http.counters().connections == 2; }));
  std::this_thread::sleep_for(milliseconds(20));
  ASSERT_TRUE(second.send(post_request("/", std::string(5000, 'y'))));
  EXPECT_EQ(second.answer().status, 503);
  ASSERT_TRUE(first.send(std::string(1000, 'x')));
  EXPECT_EQ(first.answer().status, 200);
  RawClient third(http.port());
  ASSERT_TRUE(third.send(post_request("/", std::string(5000, 'y'))));
  EXPECT_EQ(third.answer().status, 200);
}

TEST(Http, DoesNotReadBodiesThatNobodyWants) {
  HttpFixture http(
      {}, [](std::shared_ptr<Exchange> exchange) { exchange->reply(401, "text/plain", "no"); },
      [](const HttpRequest&) { return false; });
  RawClient client(http.port());
  ASSERT_TRUE(client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 60000000\r\n\r\n"));
  const auto answer = client.answer();
  EXPECT_EQ(answer.status, 401);
  EXPECT_EQ(answer.header("connection"), "close");
}

TEST(Http, CutsSlowClients) {
  HttpOptions options;
  options.header_timeout = milliseconds(300);
  options.body_timeout = milliseconds(300);
  options.idle_timeout = milliseconds(1500) * test::kPatience;
  HttpFixture http(options, echo);
  RawClient idle(http.port()), head(http.port()), body(http.port());
  body.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n");
  const auto start = std::chrono::steady_clock::now();
  // A byte now and then does not help.
  for (int i = 0; i < 12; ++i) {
    head.send("G");
    body.send("b");
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_EQ(head.answer().status, 408);
  EXPECT_EQ(body.answer().status, 408);
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(1200) * test::kPatience);
  EXPECT_TRUE(idle.closed_within(seconds(5)));
  EXPECT_GT(std::chrono::steady_clock::now() - start, milliseconds(1200) * test::kPatience);
}

TEST(Http, TellsWhenTheClientGoes) {
  std::atomic<int> gone = 0, begun = 0;
  std::vector<std::shared_ptr<Exchange>> held;
  HttpFixture http({}, [&](std::shared_ptr<Exchange> exchange) {
    exchange->on_gone([&] { ++gone; });
    held.push_back(exchange);
    ++begun;
  });
  RawClient fin(http.port()), rst(http.port());
  for (RawClient* client : {&fin, &rst}) ASSERT_TRUE(client->send(get_request("/")));
  ASSERT_TRUE(wait_for([&] { return begun == 2; }));
  fin.close();
  EXPECT_TRUE(wait_for([&] { return gone == 1; }));
  rst.reset();
  EXPECT_TRUE(wait_for([&] { return gone == 2; }));
  // An answer to nobody does nothing.
  http.on_loop([&] {
    for (const auto& exchange : held) exchange->reply(200, "text/plain", "late");
    return 0;
  });
  EXPECT_EQ(http.counters().connections, 0u);
}

TEST(Http, StreamsEventsInOneSendEachTurn) {
  std::shared_ptr<Exchange> stream;
  std::atomic<bool> begun = false;
  HttpFixture http({}, [&](std::shared_ptr<Exchange> exchange) {
    exchange->begin_events();
    stream = exchange;
    begun = true;
  });
  RawClient client(http.port());
  ASSERT_TRUE(client.send(get_request("/", "Origin: http://page\r\n")));
  ASSERT_TRUE(wait_for([&] { return begun.load(); }));
  http.on_loop([&] {
    for (int i = 0; i < 3; ++i) stream->write("data: " + std::to_string(i) + "\n\n");
    return 0;
  });
  const std::string head = client.read_until("\r\n\r\n");
  EXPECT_NE(head.find("content-type: text/event-stream"), std::string::npos);
  EXPECT_NE(head.find("access-control-allow-origin: *"), std::string::npos);
  EXPECT_EQ(client.read_until("data: 2\n\n\r\n"),
            "9\r\ndata: 0\n\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n");
  http.on_loop([&] {
    stream->end_events();
    return 0;
  });
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  ASSERT_TRUE(client.send(get_request("/again")));
}

// What follows fast shares a send; the first event and the end do not wait.
TEST(Http, PacesEventsThatFollowFast) {
  std::shared_ptr<Exchange> stream;
  std::atomic<bool> begun = false;
  HttpOptions options;
  options.send_interval = milliseconds(300) * test::kPatience;
  HttpFixture http(options, [&](std::shared_ptr<Exchange> exchange) {
    exchange->begin_events();
    stream = exchange;
    begun = true;
  });
  const auto write = [&](const std::string& data) {
    http.on_loop([&] {
      stream->write("data: " + data + "\n\n");
      return 0;
    });
  };
  RawClient client(http.port());
  ASSERT_TRUE(client.send(get_request("/")));
  ASSERT_TRUE(wait_for([&] { return begun.load(); }));
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::steady_clock::now() - begin; };
  write("first");
  EXPECT_NE(client.read_until("first\n\n\r\n", milliseconds(250)), "");
  write("second");  // begins a beat
  EXPECT_EQ(client.read_until("second\n\n\r\n", milliseconds(250)), "e\r\ndata: second\n\n\r\n");
  write("third");
  std::this_thread::sleep_for(milliseconds(20));
  write("fourth");
  EXPECT_GT(http.on_loop([&] { return stream->backlog(); }), 0u);
  EXPECT_EQ(client.read_until("fourth\n\n\r\n"),
            "d\r\ndata: third\n\n\r\ne\r\ndata: fourth\n\n\r\n");
  EXPECT_GE(passed(), milliseconds(300) * test::kPatience);
  write("fifth");
  const auto end = std::chrono::steady_clock::now();
  http.on_loop([&] {
    stream->end_events();
    return 0;
  });
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "d\r\ndata: fifth\n\n\r\n0\r\n\r\n");
  EXPECT_LT(std::chrono::steady_clock::now() - end, milliseconds(250) * test::kPatience);
}

TEST(Http, TellsOfSlowReaders) {
  std::shared_ptr<Exchange> stream;
  std::atomic<int> drained = 0;
  std::atomic<bool> begun = false;
  HttpFixture http({}, [&](std::shared_ptr<Exchange> exchange) {
    exchange->begin_events();
    exchange->on_drained([&] { ++drained; });
    stream = exchange;
    begun = true;
  });
  RawClient client(http.port());
  ASSERT_TRUE(client.send(get_request("/")));
  ASSERT_TRUE(wait_for([&] { return begun.load(); }));
  const std::string data = "data: " + std::string(32 << 20, 'x') + "\n\n";
  http.on_loop([&] {
    stream->write(data);
    return 0;
  });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_GT(http.on_loop([&] { return stream->backlog(); }), size_t{1} << 20);
  EXPECT_EQ(drained, 0);
  std::string head = client.read_until("\r\n\r\n");
  const std::string got = client.read_until("\n\n", seconds(20));
  EXPECT_TRUE(wait_for([&] { return drained >= 1; }));
  EXPECT_EQ(http.on_loop([&] { return stream->backlog(); }), 0u);
}

TEST(Http, CutsReadersThatTakeNothing) {
  std::atomic<int> gone = 0;
  std::vector<std::shared_ptr<Exchange>> held;
  HttpOptions options;
  options.send_buffer = 4096;
  options.stall_timeout = milliseconds(300);
  HttpFixture http(options, [&](std::shared_ptr<Exchange> exchange) {
    exchange->begin_events();
    exchange->on_gone([&] { ++gone; });
    exchange->write(std::string(16 << 20, 'x'));
    held.push_back(exchange);
  });
  RawClient client(http.port());
  ASSERT_TRUE(client.send(get_request("/")));
  EXPECT_TRUE(wait_for([&] { return gone == 1; }));
}

TEST(Http, SurvivesAFloodOfPipelinedRequests) {
  HttpFixture http({}, echo);
  RawClient client(http.port());
  std::string all;
  for (int i = 0; i < 20'000; ++i) all += get_request("/x");
  std::thread sender([&] { client.send(all); });
  int answers = 0;
  while (answers < 20'000 && client.answer().status == 200) ++answers;
  sender.join();
  EXPECT_EQ(answers, 20'000);
}

TEST(Http, DrainsIdleConnectionsAtOnce) {
  std::shared_ptr<Exchange> held;
  std::atomic<bool> begun = false;
  HttpFixture http({}, [&](std::shared_ptr<Exchange> exchange) {
    held = exchange;
    begun = true;
  });
  RawClient idle(http.port()), busy(http.port());
  ASSERT_TRUE(busy.send(get_request("/")));
  ASSERT_TRUE(wait_for([&] { return begun && http.counters().connections == 2; }));
  http.on_loop([&] {
    http.server().drain(/*accept=*/true);
    return 0;
  });
  EXPECT_TRUE(idle.closed_within(seconds(5)));
  http.on_loop([&] {
    held->reply(200, "text/plain", "done");
    return 0;
  });
  const auto answer = busy.answer();
  EXPECT_EQ(answer.body, "done");
  EXPECT_EQ(answer.header("connection"), "close");
}

// V01: whatever bytes come, the server lives and the next request is right.
TEST(BugCases, V01_RandomBytesDoNotHurt) {
  HttpFixture http({}, echo);
  uint64_t state = 1;
  const auto random = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
  };
  const std::string good = post_request("/v", "body", "Accept: */*\r\n");
  for (int i = 0; i < 500; ++i) {
    std::string bytes = good;
    if (i % 2 == 0) {
      bytes.resize(random() % 300);
      for (char& c : bytes) c = static_cast<char>(random());
    } else {
      for (int flips = 0; flips < 3; ++flips) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
    }
    RawClient client(http.port());
    client.send(bytes);
    if (i % 5 == 0) client.reset();
  }
  RawClient client(http.port());
  ASSERT_TRUE(client.send(get_request("/alive")));
  EXPECT_EQ(client.answer().body, "GET /alive ");
  EXPECT_TRUE(wait_for([&] { return http.counters().connections <= 1; }));
}

}  // namespace
}  // namespace lk
