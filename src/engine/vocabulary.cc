#include "engine/vocabulary.h"

#include <utility>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace lk {
namespace {

class DetokenizerStream : public TextStream {
 public:
  DetokenizerStream(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
      : tokenizer_(tokenizer),
        skip_special_(skip_special),
        detokenizer_(std::move(tokenizer), skip_special) {}
  std::string push(int32_t id) override { return detokenizer_.push(id); }
  std::string finish() override { return detokenizer_.flush(); }
  bool boundary(int32_t id) const override { return skip_special_ && tokenizer_->is_special(id); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  Detokenizer detokenizer_;
};

}  // namespace

Vocabulary make_vocabulary(std::shared_ptr<const Tokenizer> tokenizer, int size) {
  Vocabulary vocabulary;
  for (int32_t id = 0; id < size; ++id) {
    if (!tokenizer->has_token(id)) vocabulary.missing_ids.push_back(id);
  }
  vocabulary.text = [tokenizer = std::move(tokenizer)](bool skip_special) {
    return std::make_unique<DetokenizerStream>(tokenizer, skip_special);
  };
  return vocabulary;
}

}  // namespace lk
