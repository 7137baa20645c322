#include "cli/perplexity.h"

#include <algorithm>
#include <cmath>

#include "cli/session.h"

namespace lk {

Result<Perplexity> measure_perplexity(const std::string& folder, const std::string& text,
                                      int threads) {
  constexpr size_t kPiece = 1024;
  RunOptions options;
  options.model.model = folder;
  options.threads = threads;
  options.max_num_seqs = 4;
  LK_ASSIGN_OR_RETURN(const auto session, Session::load(options));
  LK_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, session->encode_prompt(text));
  if (ids.size() < 2) {
    return invalid("the text has {} tokens, too few to measure perplexity on", ids.size());
  }
  Engine& engine = session->engine();
  const size_t piece = std::min(kPiece, static_cast<size_t>(engine.max_model_len()));
  for (size_t begin = 0; begin + 1 < ids.size(); begin += piece) {
    const size_t end = std::min(ids.size(), begin + piece);
    if (end - begin < 2) break;
    Request request;
    request.prompt.assign(ids.begin() + static_cast<int64_t>(begin),
                          ids.begin() + static_cast<int64_t>(end));
    request.max_tokens = 0;
    request.prompt_logprobs = true;
    LK_RETURN_IF_ERROR(engine.submit(std::move(request)));
  }
  Perplexity out;
  double sum = 0;
  std::vector<TokenEvent> events;
  while (!engine.idle()) {
    events.clear();
    engine.step(events);
    for (const TokenEvent& event : events) {
      if (event.finish == FinishReason::kError) return invalid("{}", event.error);
      for (const float logprob : event.prompt_logprobs) sum -= logprob;
      out.tokens += static_cast<int64_t>(event.prompt_logprobs.size());
    }
  }
  out.value = std::exp(sum / static_cast<double>(out.tokens));
  return out;
}

}  // namespace lk
