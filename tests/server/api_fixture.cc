#include "tests/server/api_fixture.h"

#include <fmt/format.h>

#include "base/mmap_file.h"
#include "engine/token_output.h"
#include "engine/vocabulary.h"

namespace lk {
namespace {

std::string source(const std::string& path) {
  auto text = read_file(fmt::format("{}/{}", LK_SOURCE_DIR, path));
  EXPECT_TRUE(text) << path;
  return text ? *text : "";
}

const std::shared_ptr<const Tokenizer>& tokenizer() {
  static const auto loaded =
      Tokenizer::load(std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4/tokenizer.json");
  EXPECT_TRUE(loaded);
  return *loaded;
}

constexpr float kOther = -8;  // the logit of all tokens but the next

}  // namespace

ServedModel ApiTest::served_model(Dialect dialect) {
  ServedModel served;
  served.names = {"base", "base-alias"};
  served.root = "models/tiny";
  served.created = 1700000000;
  served.info.content_hash = 0x1234;
  served.info.vocab = tokenizer()->vocab_size();
  served.info.eos_token_ids = {*tokenizer()->token_to_id("<|return|>"),
                               *tokenizer()->token_to_id("<|call|>"),
                               *tokenizer()->token_to_id("<|im_end|>")};
  served.tokenizer = tokenizer();
  const char* path = dialect == Dialect::kPlain    ? "models/tiny-gpt-oss-mxfp4/chat_template.jinja"
                     : dialect == Dialect::kGptOss ? "tests/data/chat-templates/gpt-oss.jinja"
                                                   : "tests/data/chat-templates/qwen3.5.jinja";
  auto chat = ChatTemplate::parse(source(path), "chat_template.jinja");
  EXPECT_TRUE(chat) << (chat ? "" : chat.error().message);
  served.chat_template = *std::move(chat);
  if (dialect != Dialect::kPlain) served.parsers = detect_output_parsers(source(path));
  served.max_model_len = kContext;
  return served;
}

OrderedJson ApiTest::json(const std::string& text) {
  auto parsed = parse_body(text);
  EXPECT_TRUE(parsed) << text;
  return parsed ? *parsed : OrderedJson::object();
}

std::unique_ptr<Answer> ApiTest::make(MakeAnswer make, const std::string& body) {
  auto answer = make(json(body), served_, model_, who_);
  EXPECT_TRUE(answer) << body << ": " << (answer ? "" : answer.error().message);
  if (!answer) throw std::runtime_error("no answer");
  requests_ = (*answer)->take_requests();
  return *std::move(answer);
}

ApiError ApiTest::refuse(MakeAnswer make, const std::string& body) {
  auto answer = make(json(body), served_, model_, who_);
  EXPECT_FALSE(answer) << body;
  if (answer) return {};
  EXPECT_EQ(answer.error().status, 400) << body;
  EXPECT_FALSE(answer.error().message.empty());
  return answer.error();
}

std::vector<int32_t> ApiTest::encode(const std::string& text) const {
  return *served_.tokenizer->encode(text, {.add_special_tokens = false});
}

void ApiTest::generate(Answer& answer, const std::vector<std::string>& scripts, std::string& out) {
  ASSERT_EQ(scripts.size(), requests_.size());
  const Vocabulary vocabulary = make_vocabulary(served_.tokenizer, served_.info.vocab);
  TokenOutput output(vocabulary, served_.info.eos_token_ids, served_.info.vocab);
  std::vector<float> logits(static_cast<size_t>(served_.info.vocab));
  for (size_t i = 0; i < scripts.size(); ++i) {
    Sequence sequence;
    sequence.request = requests_[i];
    sequence.tokens = sequence.request.prompt;
    sequence.prompt_size = static_cast<int>(sequence.tokens.size());
    sequence.max_length = sequence.prompt_size + sequence.request.max_tokens;
    sequence.stop = StopMatcher(sequence.request.stop, sequence.request.include_stop);
    sequence.text = vocabulary.text(sequence.request.skip_special);
    TokenEvent first;
    first.cached_tokens = cached_tokens_;
    if (sequence.request.prompt_logprobs) {
      const size_t count = sequence.request.prompt.size() - 1;
      first.prompt_logprobs.assign(count, -0.5f);
      if (sequence.request.prompt_ranks) first.prompt_ranks.assign(count, 7);
      if (std::max(sequence.request.logprobs, sequence.request.prompt_top) > 0)
        first.prompt_top.assign(count, {{encode("one")[0], -0.25f}});
    }
    if (sequence.request.max_tokens == 0) first.finish = FinishReason::kLength;
    bool done = first.finish != FinishReason::kNone;
    answer.on_event(static_cast<int>(i), std::move(first), out);
    std::vector<int32_t> tokens = encode(scripts[i]);
    tokens.push_back(served_.info.eos_token_ids[0]);
    for (size_t t = 0; t < tokens.size() && !done; ++t) {
      std::fill(logits.begin(), logits.end(), kOther);
      logits[static_cast<size_t>(tokens[t])] = 8;
      TokenEvent event;
      output.next_token(sequence, logits.data(), event);
      done = event.finish != FinishReason::kNone;
      EXPECT_EQ(answer.complete(), false);
      answer.on_event(static_cast<int>(i), std::move(event), out);
    }
    EXPECT_TRUE(done) << scripts[i];
  }
  EXPECT_TRUE(answer.complete());
}

OrderedJson ApiTest::whole(Answer& answer, const std::vector<std::string>& scripts) {
  EXPECT_FALSE(answer.streams());
  std::string out;
  generate(answer, scripts, out);
  EXPECT_EQ(out, "");
  auto body = answer.body();
  EXPECT_TRUE(body) << (body ? "" : body.error().message);
  return json(body ? *body : "{}");
}

std::vector<OrderedJson> ApiTest::streamed(Answer& answer, const std::vector<std::string>& scripts,
                                           bool done) {
  EXPECT_TRUE(answer.streams());
  std::string out;
  generate(answer, scripts, out);
  answer.end(out);
  std::vector<OrderedJson> events;
  bool ended = false;
  size_t at = 0;
  while (at < out.size()) {
    const size_t end = out.find("\n\n", at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "a cut event: " << out.substr(at);
      break;
    }
    const std::string frame = out.substr(at, end - at);
    at = end + 2;
    EXPECT_FALSE(ended) << "behind the end: " << frame;
    const size_t data = frame.starts_with("data: ") ? 0 : frame.find("\ndata: ") + 1;
    const std::string text = frame.substr(data + 6);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    if (text == "[DONE]") {
      ended = true;
    } else {
      events.push_back(json(text));
    }
  }
  EXPECT_EQ(ended, done);
  return events;
}

std::string joined(const std::vector<OrderedJson>& chunks, const std::string& field, int index) {
  std::string text;
  for (const OrderedJson& chunk : chunks) {
    for (const OrderedJson& choice : chunk["choices"]) {
      if (choice["index"] != index) continue;
      const OrderedJson& from = choice.contains("delta") ? choice["delta"] : choice;
      if (from.contains(field) && from[field].is_string()) text += from[field].get<std::string>();
    }
  }
  return text;
}

}  // namespace lk
