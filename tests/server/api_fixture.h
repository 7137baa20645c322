// Endpoints without an engine: a served model over the shipped tokenizer, and scripts of tokens
// that become the events an engine would give.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/api/answer.h"
#include "server/api/endpoints.h"

namespace lk {

class ApiTest : public ::testing::Test {
 public:
  static constexpr int kContext = 512;
  enum class Dialect { kPlain, kGptOss, kQwen };

  // kPlain: the small model's own template, no parsers.
  static ServedModel served_model(Dialect dialect = Dialect::kPlain);

  static OrderedJson json(const std::string& text);

  // Answers that must be made.
  std::unique_ptr<Answer> make(MakeAnswer make, const std::string& body);
  // 400s that must be given.
  ApiError refuse(MakeAnswer make, const std::string& body);

  // What a model writes: for each request the text of its tokens (special tokens by their names).
  // Ends by the end-of-turn token, or where max_tokens ends.
  void generate(Answer& answer, const std::vector<std::string>& scripts, std::string& out);
  OrderedJson whole(Answer& answer, const std::vector<std::string>& scripts);
  // The data of every event; the last must be [DONE] if `done`.
  std::vector<OrderedJson> streamed(Answer& answer, const std::vector<std::string>& scripts,
                                    bool done = true);

  std::vector<int32_t> encode(const std::string& text) const;

  ServedModel served_ = served_model();
  std::shared_ptr<const EngineAdapter> who_;
  std::string model_ = "base";
  std::vector<Request> requests_;  // of the last answer
  int cached_tokens_ = 0;          // told by each first event
};

// For tests of other suites: a fixture as a value.
struct Api : ApiTest {
  void TestBody() override {}
};

// All content (or another text field) of a stream's deltas of choice `index`, joined.
std::string joined(const std::vector<OrderedJson>& chunks, const std::string& field, int index = 0);

}  // namespace lk
