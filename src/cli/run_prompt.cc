#include <nlohmann/json.hpp>

#include "cli/answer.h"
#include "cli/run.h"
#include "server/api/sampling_fields.h"

namespace lk {
namespace {

Result<std::vector<int32_t>> encode(const RunOptions& options, const Session& session) {
  if (!options.chat) return session.encode_prompt(options.prompt.value_or(""));
  const OrderedJson message = {{"role", "user"}, {"content", *options.chat}};
  return session.encode_chat(OrderedJson::array({message}), nullptr, nullptr);
}

// Shows the answers one below the other: the first that is not finished as it comes, those behind
// it when their turn is there.
class Shown {
 public:
  Shown(const RunOptions& options, std::vector<RunAnswer>& answers, Output& output)
      : json_(options.json), answers_(answers), output_(output) {}

  void update() {
    while (turn_ < answers_.size()) {
      RunAnswer& answer = answers_[turn_];
      const bool done = answer.finish != FinishReason::kNone;
      if (!json_) show_text(answer);
      if (!done) return;
      if (answer.failed()) {
        print_error(answer.error);
      }
      output_.write(json_ ? answer.json() : "\n");
      ++turn_;
      written_ = 0;
      headed_ = false;
    }
  }

 private:
  void show_text(const RunAnswer& answer) {
    if (!headed_ && answers_.size() > 1)
      output_.write((turn_ > 0 ? "\n" : "") + answer.adapter + ":\n");
    headed_ = true;
    output_.write(std::string_view(answer.text).substr(written_));
    written_ = answer.text.size();
  }

  bool json_;
  std::vector<RunAnswer>& answers_;
  Output& output_;
  size_t turn_ = 0, written_ = 0;
  bool headed_ = false;
};

}  // namespace

Result<int> run_prompt(const RunOptions& options, Session& session, const RequestDefaults& defaults,
                       Output& output) {
  LK_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, encode(options, session));
  Engine& engine = session.engine();
  std::vector<std::string> names = options.adapters;
  if (names.empty()) names = {"base"};
  std::vector<RunAnswer> answers;
  std::map<RequestId, size_t> positions;
  for (const std::string& name : names) {
    Request request = defaults.request;
    request.prompt = prompt;
    LK_ASSIGN_OR_RETURN(request.adapter, session.adapter(name));
    if (defaults.max_tokens) {
      request.max_tokens = *defaults.max_tokens;
    } else {
      default_max_tokens(request, engine.max_model_len());
    }
    request.sampling.seed = defaults.seed.value_or(random_seed());
    RunAnswer answer;
    answer.adapter = name;
    answer.prompt_ids = prompt;
    answer.wants_logprobs = request.logprobs >= 0;
    answer.wants_top = request.logprobs > 0;
    answer.wants_prompt_logprobs = request.prompt_logprobs;
    LK_ASSIGN_OR_RETURN(const RequestId id, engine.submit(std::move(request)));
    positions[id] = answers.size();
    answers.push_back(std::move(answer));
  }
  Shown shown(options, answers, output);
  std::vector<TokenEvent> events;
  while (!engine.idle() && !interrupted() && !output.closed()) {
    events.clear();
    engine.step(events);
    for (TokenEvent& event : events) answers[positions.at(event.request)].add(std::move(event));
    shown.update();
  }
  if (interrupted() && !options.json) output.write("\n");
  const bool failed = std::any_of(answers.begin(), answers.end(),
                                  [](const RunAnswer& answer) { return answer.failed(); });
  return failed ? kExitFailed : kExitGood;
}

}  // namespace lk
