// What the API costs for each generated token: events of 64 streams become server-sent events.
// Prints microseconds of CPU time a token.
//   api_bench [tokens a stream]
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/mmap_file.h"
#include "bench/arguments.h"
#include "server/api/endpoints.h"

namespace {

constexpr int kStreams = 64;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

lk::ServedModel served_model(const std::string& root, const std::string& chat_template) {
  lk::ServedModel served;
  served.names = {"base"};
  served.tokenizer =
      lk::Tokenizer::load(root + "/models/tiny-gpt-oss-mxfp4/tokenizer.json").value();
  served.info.vocab = served.tokenizer->vocab_size();
  const std::string source = lk::read_file(root + "/" + chat_template).value();
  served.chat_template = lk::ChatTemplate::parse(source, "template").value();
  served.parsers = lk::detect_output_parsers(source);
  served.max_model_len = 1 << 20;
  return served;
}

void measure(const char* name, lk::MakeAnswer make, const lk::ServedModel& served,
             const std::string& text, int tokens) {
  const lk::OrderedJson body = lk::parse_body(text).value();
  std::vector<std::unique_ptr<lk::Answer>> answers;
  for (int i = 0; i < kStreams; ++i)
    answers.push_back(make(body, served, "an-adapter", nullptr).value());
  const std::vector<int32_t> ids =
      served.tokenizer->encode(" select name from the table where it is \"so\"\n").value();
  std::vector<lk::TopLogprob> top;
  for (int i = 0; i < 5; ++i)
    top.push_back({ids[static_cast<size_t>(i)], -0.25f * static_cast<float>(i)});
  const bool logprobs = body.contains("logprobs");
  std::string out;
  size_t bytes = 0;
  const double begin = cpu_seconds();
  for (int t = 0; t < tokens; ++t) {
    const int32_t id = ids[static_cast<size_t>(t) % ids.size()];
    for (auto& answer : answers) {
      lk::TokenEvent event;
      event.token = id;
      event.text = served.tokenizer->token_bytes(id);
      if (logprobs) event.top = top;
      out.clear();
      answer->on_event(0, std::move(event), out);
      bytes += out.size();
    }
  }
  const double count = static_cast<double>(tokens) * kStreams;
  fmt::print("{:<28} {:6.2f} us/token, {:4.0f} bytes/token\n", name,
             1e6 * (cpu_seconds() - begin) / count, static_cast<double>(bytes) / count);
}

}  // namespace

int main(int argc, char** argv) {
  const lk::bench::Arguments arguments("api_bench", "[TOKENS]");
  const std::vector<std::string> words = arguments.parse(argc, argv, 0, 1);
  const int tokens = words.empty() ? 2000 : arguments.as_number("TOKENS", words[0], 1, 100'000'000);
  const std::string root = LK_SOURCE_DIR;
  const lk::ServedModel plain = served_model(root, "models/tiny-gpt-oss-mxfp4/chat_template.jinja");
  const lk::ServedModel parsed = served_model(root, "tests/data/chat-templates/gpt-oss.jinja");
  const std::string chat = R"({"messages": [{"role": "user", "content": "hi"}], "stream": true)";
  measure("completions", lk::make_completion_answer, plain, R"({"prompt": "hi", "stream": true})",
          tokens);
  measure("chat", lk::make_chat_answer, plain, chat + "}", tokens);
  measure("chat, top_logprobs 5", lk::make_chat_answer, plain,
          chat + R"(, "logprobs": true, "top_logprobs": 5})", tokens);
  measure("chat, harmony", lk::make_chat_answer, parsed, chat + "}", tokens);
  measure("responses, harmony", lk::make_response_answer, parsed,
          R"({"input": "hi", "stream": true})", tokens);
  return 0;
}
