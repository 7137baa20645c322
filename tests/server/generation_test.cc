#include "server/generation.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "server/api/endpoints.h"
#include "tests/server/http_fixture.h"
#include "tests/server/raw_client.h"

namespace lk {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Runs one request of the engine for each letter of "prompts"; tells each event as it comes.
class FakeAnswer : public Answer {
 public:
  FakeAnswer(const OrderedJson& body, std::string who, size_t requests)
      : stream_(body.value("stream", false)), who_(std::move(who)), left_(requests) {
    requests_.resize(requests);
    for (Request& request : requests_) request.prompt = {1};
  }
  std::vector<Request> take_requests() override { return std::move(requests_); }
  bool streams() const override { return stream_; }
  void on_event(int index, TokenEvent&& event, std::string& out) override {
    text_ += event.text;
    if (stream_) out += "data: " + std::to_string(index) + event.text + "\n\n";
    if (event.finish != FinishReason::kNone) --left_;
  }
  bool complete() const override { return left_ == 0; }
  void end(std::string& out) override { out += "data: [DONE]\n\n"; }
  ApiResult<std::string> body() override { return who_ + ":" + text_; }
  void fail(const ApiError& error, std::string& out) override {
    out += "data: error " + error.message + "\n\n";
  }

 private:
  bool stream_;
  std::string who_, text_;
  size_t left_;
  std::vector<Request> requests_;
};

ApiResult<std::unique_ptr<Answer>> make_fake(const OrderedJson& body, const ServedModel&,
                                             const std::string& model,
                                             std::shared_ptr<const EngineAdapter> who) {
  if (body.contains("bad")) return tl::unexpected<ApiError>(ApiError{.message = "bad is bad"});
  return std::make_unique<FakeAnswer>(body, who ? who->name : "base of " + model,
                                      body.value("n", size_t{1}));
}

// An engine that does nothing by itself; the test gives the events.
class FakeBackend : public GenerationBackend {
 public:
  Result<std::vector<RequestId>> submit(std::vector<Request> requests) override {
    if (dead) return fail(ErrorKind::kResource, "the engine has stopped");
    std::vector<RequestId> ids;
    for (size_t i = 0; i < requests.size(); ++i) running.insert(ids.emplace_back(++last));
    return ids;
  }
  void cancel(RequestId id) override {
    running.erase(id);
    ++cancelled;
  }
  void pause(RequestId id) override { paused.insert(id); }
  void resume(RequestId id) override { paused.erase(id); }
  AdapterStore::Adapters find(const std::string& name) override {
    return name == "warm" ? std::make_shared<EngineAdapter>(EngineAdapter{name, 1, nullptr})
                          : nullptr;
  }
  void resolve(const std::string& name, AdapterStore::Done done) override {
    if (name == "nobody") {
      done(fail(ErrorKind::kNotFound, "no adapter"));
    } else {
      waiting[name] = std::move(done);
    }
  }

  std::set<RequestId> running, paused;
  std::map<std::string, AdapterStore::Done> waiting;
  RequestId last = 0;
  int cancelled = 0;
  bool dead = false;
};

class World {
 public:
  explicit World(GenerationOptions options = {})
      : http({}, [this](std::shared_ptr<Exchange> exchange) {
          generations->start(std::move(exchange), make_fake);
        }) {
    served.names = {"tiny"};
    http.on_loop([&] {
      generations =
          std::make_unique<Generations>(http.loop(), pool, served, backend, nullptr, options);
      return 0;
    });
  }
  ~World() {
    http.on_loop([&] {
      generations.reset();
      return 0;
    });
  }

  void event(RequestId id, const std::string& text, FinishReason finish = FinishReason::kNone) {
    http.on_loop([&] {
      std::vector<TokenEvent> events(1);
      events[0].request = id;
      events[0].token = 5;
      events[0].text = text;
      events[0].finish = finish;
      if (finish == FinishReason::kError) events[0].error = text;
      generations->deliver(std::move(events));
      return 0;
    });
  }
  bool eventually(const std::function<bool()>& good) {
    for (int i = 0; i < 2000 * test::kPatience; ++i) {
      if (http.on_loop(good)) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }
  bool submitted(RequestId id) {
    return eventually([&] { return backend.last >= id; });
  }

  ServedModel served;
  FakeBackend backend;
  HttpFixture http;
  std::unique_ptr<Generations> generations;
  WorkPool pool{1};  // what it still finishes is posted to http's loop
};

TEST(Generation, AnswersWhole) {
  World w;
  RawClient client(w.http.port());
  ASSERT_TRUE(client.send(post_request("/", R"({"model": "tiny"})")));
  ASSERT_TRUE(w.submitted(1));
  w.event(1, "a");
  w.event(1, "b", FinishReason::kStop);
  EXPECT_EQ(client.answer().body, "base of tiny:ab");
  EXPECT_EQ(w.http.on_loop([&] { return w.generations->active(); }), 0u);
}

TEST(Generation, Streams) {
  World w;
  RawClient client(w.http.port());
  ASSERT_TRUE(client.send(post_request("/", R"({"stream": true, "n": 2})")));
  ASSERT_TRUE(w.submitted(2));
  w.event(2, "b");
  EXPECT_NE(client.read_until("data: 1b\n\n").find("200 OK"), std::string::npos);
  w.event(1, "a", FinishReason::kLength);
  w.event(2, "c", FinishReason::kStop);
  const std::string rest = client.read_until("0\r\n\r\n");
  EXPECT_NE(rest.find("data: 0a\n\n"), std::string::npos);
  EXPECT_NE(rest.find("data: 1c\n\n"), std::string::npos);
  EXPECT_NE(rest.find("data: [DONE]\n\n"), std::string::npos);
}

TEST(Generation, FindsAdapters) {
  World w;
  RawClient warm(w.http.port()), cold(w.http.port()), none(w.http.port()), bad(w.http.port());
  ASSERT_TRUE(warm.send(post_request("/", R"({"model": "warm"})")));
  ASSERT_TRUE(w.submitted(1));
  w.event(1, "x", FinishReason::kStop);
  EXPECT_EQ(warm.answer().body, "warm:x");

  ASSERT_TRUE(cold.send(post_request("/", R"({"model": "cold"})")));
  ASSERT_TRUE(w.eventually([&] { return w.backend.waiting.contains("cold"); }));
  w.backend.waiting["cold"](std::make_shared<EngineAdapter>(EngineAdapter{"cold", 2, nullptr}));
  ASSERT_TRUE(w.submitted(2));
  w.event(2, "y", FinishReason::kStop);
  EXPECT_EQ(cold.answer().body, "cold:y");

  ASSERT_TRUE(none.send(post_request("/", R"({"model": "nobody"})")));
  const auto missing = none.answer();
  EXPECT_EQ(missing.status, 404);
  EXPECT_NE(missing.body.find("The model `nobody` does not exist."), std::string::npos);

  ASSERT_TRUE(bad.send(post_request("/", R"({"model": "broken"})")));
  ASSERT_TRUE(w.eventually([&] { return w.backend.waiting.contains("broken"); }));
  w.backend.waiting["broken"](fail(ErrorKind::kInvalid, "rank 300 is more than 256"));
  const auto refused = bad.answer();
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("rank 300"), std::string::npos);
}

TEST(Generation, RefusesBadBodies) {
  World w;
  const std::string deep(100'000, '[');
  const std::string invalid_utf8 = std::string("{\"model\": \"\xff\"}");
  for (const std::string& body :
       {std::string(), std::string("nonsense"), std::string("[1]"), std::string(R"({"model": 7})"),
        std::string(R"({"bad": 1})"), deep, invalid_utf8, std::string("{\"a\": 1} x")}) {
    RawClient client(w.http.port());
    ASSERT_TRUE(client.send(post_request("/", body)));
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, 400) << body.substr(0, 40);
    EXPECT_NE(answer.body.find("\"error\""), std::string::npos);
  }
}

TEST(Generation, WorksOnLongBodiesBesideTheLoop) {
  World w;
  RawClient client(w.http.port());
  ASSERT_TRUE(client.send(
      post_request("/", R"({"model": "tiny", "x": ")" + std::string(8 << 20, 'x') + "\"}")));
  ASSERT_TRUE(w.submitted(1));
  w.event(1, "z", FinishReason::kStop);
  EXPECT_EQ(client.answer().body, "base of tiny:z");
}

TEST(Generation, TellsFaults) {
  World w;
  RawClient whole(w.http.port()), early(w.http.port()), late(w.http.port()), dead(w.http.port());
  ASSERT_TRUE(whole.send(post_request("/", "{}")));
  ASSERT_TRUE(w.submitted(1));
  w.event(1, "the kernel failed", FinishReason::kError);
  EXPECT_EQ(whole.answer().status, 500);
  ASSERT_TRUE(early.send(post_request("/", R"({"stream": true, "n": 2})")));
  ASSERT_TRUE(w.submitted(3));
  w.event(2, "the kernel failed", FinishReason::kError);
  EXPECT_EQ(early.answer().status, 500);
  EXPECT_TRUE(w.http.on_loop([&] { return !w.backend.running.contains(3); }));
  ASSERT_TRUE(late.send(post_request("/", R"({"stream": true})")));
  ASSERT_TRUE(w.submitted(4));
  w.event(4, "a");
  w.event(4, "the kernel failed", FinishReason::kError);
  EXPECT_EQ(late.answer().body, "data: 0a\n\ndata: error the kernel failed\n\n");
  w.http.on_loop([&] { return w.backend.dead = true; });
  ASSERT_TRUE(dead.send(post_request("/", "{}")));
  const auto answer = dead.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.header("retry-after"), "1");
}

TEST(BugCases, U01_WorkEndsWhenTheClientGoes) {
  World w;
  const auto gone = [&](size_t active) {
    return w.eventually(
        [&] { return w.generations->active() == active && w.backend.running.empty(); });
  };
  for (const bool stream : {false, true}) {
    for (const bool reset : {false, true}) {
      RawClient client(w.http.port());
      const RequestId first = w.backend.last + 1;
      ASSERT_TRUE(
          client.send(post_request("/", stream ? R"({"stream": true, "n": 3})" : R"({"n": 3})")));
      ASSERT_TRUE(w.submitted(first + 2));
      w.event(first, "a");
      reset ? client.reset() : client.close();
      EXPECT_TRUE(gone(0));
      w.event(first + 1, "too late");
    }
  }
  EXPECT_EQ(w.backend.cancelled, 12);
  // While its adapter is loading.
  RawClient waiting(w.http.port());
  ASSERT_TRUE(waiting.send(post_request("/", R"({"model": "cold"})")));
  ASSERT_TRUE(w.eventually([&] { return w.backend.waiting.contains("cold"); }));
  waiting.close();
  EXPECT_TRUE(gone(0));
  const RequestId before = w.backend.last;
  w.backend.waiting["cold"](std::make_shared<EngineAdapter>(EngineAdapter{"cold", 2, nullptr}));
  EXPECT_TRUE(gone(0));
  EXPECT_EQ(w.backend.last, before);
}

TEST(BugCases, U04_ACancelThatMeetsTheEndIsHarmless) {
  World w;
  for (int i = 0; i < 200; ++i) {
    RawClient client(w.http.port());
    const RequestId id = w.backend.last + 1;
    ASSERT_TRUE(client.send(post_request("/", R"({"stream": true})")));
    ASSERT_TRUE(w.submitted(id));
    client.close();
    w.event(id, "last", FinishReason::kStop);
  }
  EXPECT_TRUE(w.eventually([&] { return w.generations->active() == 0; }));
}

TEST(Generation, PausesForSlowReaders) {
  GenerationOptions options;
  options.pause_backlog = 256 << 10;
  World w(options);
  RawClient client(w.http.port());
  ASSERT_TRUE(client.send(post_request("/", R"({"stream": true})")));
  ASSERT_TRUE(w.submitted(1));
  const std::string piece(1 << 20, 'x');
  int sent = 0;
  while (w.http.on_loop([&] { return w.backend.paused.empty(); }) && sent < 1000) {
    w.event(1, piece);
    ++sent;
  }
  ASSERT_LT(sent, 1000);
  // It reads on: the engine goes on.
  std::thread reader([&] { client.read_until("[DONE]", seconds(60)); });
  EXPECT_TRUE(w.eventually([&] { return w.backend.paused.empty(); }));
  w.event(1, "", FinishReason::kStop);
  reader.join();
}

// A reader that stays behind must not hold its adapter in memory for good.
TEST(Generation, GivesUpOnReadersThatStayBehind) {
  GenerationOptions options;
  options.pause_backlog = 256 << 10;
  options.pause_timeout = milliseconds(100);
  World w(options);
  RawClient client(w.http.port());
  ASSERT_TRUE(client.send(post_request("/", R"({"stream": true})")));
  ASSERT_TRUE(w.submitted(1));
  const std::string piece(1 << 20, 'x');
  const auto cancelled = [&] { return w.http.on_loop([&] { return w.backend.cancelled; }); };
  // As long as the sockets take it, each pause is over in a moment.
  for (int sent = 0; cancelled() == 0 && sent < 1000; ++sent) {
    w.event(1, piece);
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(cancelled(), 1);
  EXPECT_EQ(w.http.on_loop([&] { return w.generations->active(); }), 0u);
  // What it did not read is still there for it, and says why it ends.
  const std::string rest = client.read_until("0\r\n\r\n", seconds(60));
  EXPECT_NE(rest.find("the answer was not read"), std::string::npos);
}

TEST(Generation, BoundsTheQueue) {
  GenerationOptions options;
  options.max_running = 1;
  options.max_queue = 1;
  World w(options);
  RawClient first(w.http.port()), second(w.http.port()), third(w.http.port());
  ASSERT_TRUE(first.send(post_request("/", "{}")));
  ASSERT_TRUE(w.submitted(1));
  ASSERT_TRUE(second.send(post_request("/", "{}")));
  ASSERT_TRUE(w.submitted(2));
  ASSERT_TRUE(third.send(post_request("/", "{}")));
  const auto full = third.answer();
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.header("retry-after"), "1");
  w.event(1, "", FinishReason::kStop);
  EXPECT_EQ(first.answer().status, 200);
  ASSERT_TRUE(third.send(post_request("/", "{}")));
  EXPECT_TRUE(w.submitted(3));
}

TEST(Generation, EndsWhatTakesTooLong) {
  GenerationOptions options;
  options.request_timeout = milliseconds(200);
  World w(options);
  RawClient whole(w.http.port()), stream(w.http.port());
  ASSERT_TRUE(whole.send(post_request("/", "{}")));
  ASSERT_TRUE(w.submitted(1));
  ASSERT_TRUE(stream.send(post_request("/", R"({"stream": true})")));
  ASSERT_TRUE(w.submitted(2));
  w.event(2, "a");
  EXPECT_EQ(whole.answer().status, 504);
  EXPECT_NE(stream.answer().body.find("data: error the answer took longer"), std::string::npos);
  EXPECT_TRUE(w.http.on_loop([&] { return w.backend.running.empty(); }));
}

}  // namespace
}  // namespace lk
