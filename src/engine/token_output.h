// From a row of logits to the next event of a request: chooses the token, its log-probabilities and
// its text, and sees whether the request ends. Used by the engine's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/sampler.h"
#include "engine/sequence.h"
#include "engine/vocabulary.h"
#include "kernels/kernels.h"

namespace lk {

class TokenOutput {
 public:
  // `vocab`: ids in a row of logits.
  TokenOutput(const Vocabulary& vocabulary, std::vector<int32_t> eos_ids, int vocab);

  // How a device that tells up to `most_top` of a row's largest logits may choose the token that
  // follows, or what it must tell for that; nothing if the row is needed on the host.
  std::optional<RowChoice> row_choice(const Sequence& sequence, int most_top) const;
  // next_token from what the device made of row_choice's answer; `best` as ChooseArgs::best has it
  // of the row. False, and nothing is done, if that is not enough: next_token is to get the row.
  bool take_choice(Sequence& sequence, const RowChoice& choice, const RowResult& result,
                   std::span<const TopLogit> best, TokenEvent& event);
  // Appends the token that follows to `sequence` and tells it in `event`; changes `logits` [vocab].
  // A row without a choice gives an event with kError.
  void next_token(Sequence& sequence, float* logits, TokenEvent& event);

 private:
  int32_t choose(const Sequence& sequence, float* logits);
  // Appends `token`; -1: there was none.
  void take_token(Sequence& sequence, int32_t token, TokenEvent& event);
  void end_or_go_on(Sequence& sequence, TokenEvent& event);
  void add_text(Sequence& sequence, TokenEvent& event, bool ended, bool last);
  bool is_eos(int32_t token) const;
  // The row is no longer what the model gave when the token is chosen.
  static bool changes_row(const Sequence& sequence);

  std::vector<std::pair<int32_t, int32_t>> missing_;  // [first, last) of ids without a token
  std::vector<int32_t> eos_ids_;
  int vocab_;
  Sampler sampler_;
  std::vector<float> model_row_;                     // scratch
  std::vector<std::pair<int32_t, float>> excluded_;  // scratch: ids and their logits
};

}  // namespace lk
