// A request's body: any bytes give an answer that can be run to its end, or an error with a
// sentence.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "base/mmap_file.h"
#include "server/api/endpoints.h"

namespace {

lk::ServedModel load_model() {
  const std::string root = LK_SOURCE_DIR;
  lk::ServedModel served;
  served.names = {"base"};
  served.tokenizer =
      lk::Tokenizer::load(root + "/models/tiny-gpt-oss-mxfp4/tokenizer.json").value();
  served.info.vocab = served.tokenizer->vocab_size();
  const std::string source =
      lk::read_file(root + "/tests/data/chat-templates/gpt-oss.jinja").value();
  served.chat_template = lk::ChatTemplate::parse(source, "template").value();
  served.parsers = lk::detect_output_parsers(source);
  served.max_model_len = 4096;
  return served;
}

void run(lk::MakeAnswer make, const lk::OrderedJson& body, const lk::ServedModel& served) {
  auto made = make(body, served, "base", nullptr);
  if (!made) {
    LK_CHECK(made.error().status == 400 && !made.error().message.empty());
    return;
  }
  lk::Answer& answer = **made;
  const std::vector<lk::Request> requests = answer.take_requests();
  LK_CHECK(!requests.empty());
  std::string out;
  for (size_t i = 0; i < requests.size(); ++i) {
    LK_CHECK(lk::check_sampling(requests[i].sampling));
    LK_CHECK(!requests[i].prompt.empty() && requests[i].max_tokens >= 0);
    lk::TokenEvent event;
    event.token = 7;
    event.text = "x\xFF";
    event.finish = lk::FinishReason::kLength;
    answer.on_event(static_cast<int>(i), std::move(event), out);
  }
  LK_CHECK(answer.complete());
  if (answer.streams()) {
    answer.end(out);
    LK_CHECK(out.ends_with("\n\n"));
  } else {
    LK_CHECK(lk::parse_body(answer.body().value()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const lk::ServedModel served = load_model();
  const auto body = lk::parse_body({reinterpret_cast<const char*>(data), size});
  if (!body) return 0;
  for (const lk::GenerationEndpoint& endpoint : lk::generation_endpoints())
    run(endpoint.make, *body, served);
  (void)lk::tokenize_body(*body, served);
  (void)lk::detokenize_body(*body, served);
  (void)lk::read_model(*body, served);
  return 0;
}
