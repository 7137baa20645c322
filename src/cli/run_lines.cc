#include <deque>
#include <nlohmann/json.hpp>

#include "cli/answer.h"
#include "cli/line_reader.h"
#include "cli/run.h"

namespace lk {
namespace {

// Lines that are read ahead of the first answer still missing: enough that one long answer does not
// empty the batch, and bounded, so that a file of any length runs in the same memory.
constexpr size_t kLinesAhead = 4096;
constexpr size_t kBytesAhead = size_t{64} << 20;  // of finished answers

class LineRun {
 public:
  LineRun(const RunOptions& options, Session& session, const RequestDefaults& defaults,
          Output& output, LineReader reader)
      : options_(options),
        session_(session),
        engine_(session.engine()),
        defaults_(defaults),
        output_(output),
        reader_(std::move(reader)),
        started_(now_seconds()) {}

  Result<int> run() {
    std::vector<TokenEvent> events;
    while (!interrupted() && !output_.closed()) {
      flush();  // before waiting for more input
      fill();
      if (engine_.idle()) {
        if (end_) break;
        continue;
      }
      events.clear();
      engine_.step(events);
      for (TokenEvent& event : events) take(std::move(event));
      show_progress();
    }
    status_.clear();
    flush();
    if (status_.visible() && !interrupted()) summarize();
    if (unreadable_ && !output_.closed()) return tl::unexpected<Error>(reader_.failure());
    return failed_ > 0 ? kExitFailed : kExitGood;
  }

 private:
  struct Line {
    RunAnswer answer;
    std::string rendered;  // once finished; the answer is gone then
    bool finished = false;
  };

  // Reads lines while the engine has room for them; waits for one only if there is nothing else to
  // do.
  void fill() {
    const int wanted = 2 * options_.max_num_seqs;
    std::string text;
    while (!end_ && !interrupted() && in_flight_.size() < static_cast<size_t>(wanted) &&
           lines_.size() < kLinesAhead && bytes_ahead_ < kBytesAhead) {
      const LineReader::State state = reader_.next(text, in_flight_.empty());
      if (state == LineReader::State::kNotYet) return;
      if (state == LineReader::State::kEnd || state == LineReader::State::kFailed) {
        end_ = true;
        unreadable_ = state == LineReader::State::kFailed;
        return;
      }
      ++line_number_;
      if (text.find_first_not_of(" \t") == std::string::npos && state == LineReader::State::kLine)
        continue;
      lines_.emplace_back();
      const Status good =
          state == LineReader::State::kTooLong
              ? invalid("line {}: longer than {} bytes", line_number_, LineReader::kMaxLine)
              : submit(text, lines_.back().answer);
      if (!good) {
        lines_.back().answer.error = good.error().message;
        finish(lines_.back());
      }
      if (in_flight_.empty()) flush();
    }
  }

  Status submit(const std::string& text, RunAnswer& answer) {
    const std::string what = fmt::format("line {}", line_number_);
    ParsedLine parsed = parse_line(text, what, defaults_);
    answer.id = std::move(parsed.id);
    if (!parsed.request) return tl::unexpected<Error>(parsed.request.error());
    const Status good = submit(*parsed.request, answer);
    if (good || good.error().message.rfind(what, 0) == 0) return good;
    return invalid("{}: {}", what, good.error().message);
  }

  Status submit(LineRequest& line, RunAnswer& answer) {
    Request& request = line.request;
    LK_ASSIGN_OR_RETURN(request.adapter, session_.adapter(line.adapter));
    if (auto* ids = std::get_if<std::vector<int32_t>>(&line.prompt)) {
      request.prompt = std::move(*ids);
    } else if (auto* text = std::get_if<std::string>(&line.prompt)) {
      LK_ASSIGN_OR_RETURN(request.prompt, session_.encode_prompt(*text));
    } else {
      const auto& chat = std::get<LineRequest::Chat>(line.prompt);
      LK_ASSIGN_OR_RETURN(request.prompt,
                          session_.encode_chat(*chat.messages, *chat.tools, *chat.variables));
    }
    if (line.default_max_tokens) default_max_tokens(request, engine_.max_model_len());
    answer.adapter = line.adapter;
    answer.prompt_ids = request.prompt;
    answer.wants_logprobs = request.logprobs >= 0;
    answer.wants_top = request.logprobs > 0;
    answer.wants_prompt_logprobs = request.prompt_logprobs;
    LK_ASSIGN_OR_RETURN(const RequestId id, engine_.submit(std::move(request)));
    in_flight_[id] = first_line_ + lines_.size() - 1;
    return {};
  }

  void take(TokenEvent&& event) {
    const auto at = in_flight_.find(event.request);
    Line& line = lines_[at->second - first_line_];
    line.answer.add(std::move(event));
    if (line.answer.finish == FinishReason::kNone) return;
    in_flight_.erase(at);
    finish(line);
  }

  void finish(Line& line) {
    failed_ += line.answer.failed();
    line.finished = true;
    line.rendered = options_.json ? line.answer.json() : text_of(line.answer);
    bytes_ahead_ += line.rendered.size();
    line.answer = {};
  }

  static std::string text_of(const RunAnswer& answer) {
    const std::string head = answer.id == "null" ? "" : answer.id + " ";
    if (answer.failed()) return fmt::format("=== {}error\n{}\n\n", head, answer.error);
    return fmt::format("=== {}{}\n{}\n\n", head, answer.adapter, answer.text);
  }

  void flush() {
    std::string text;
    while (!lines_.empty() && lines_.front().finished) {
      text += lines_.front().rendered;
      bytes_ahead_ -= lines_.front().rendered.size();
      lines_.pop_front();
      ++first_line_;
    }
    if (text.empty()) return;
    status_.clear();
    output_.write(text);
  }

  uint64_t done() const { return first_line_ + lines_.size() - in_flight_.size(); }

  void show_progress() {
    if (!status_.due()) return;
    // Lines are read ahead of the answers: what is read counts as far as it is answered.
    const double answered = static_cast<double>(done()) /
                            static_cast<double>(std::max<uint64_t>(1, first_line_ + lines_.size()));
    const double share = answered * static_cast<double>(reader_.position()) /
                         static_cast<double>(std::max<uint64_t>(1, reader_.size()));
    const std::string bar = reader_.size() > 0 ? progress_bar(std::min(1.0, share)) + " " : "";
    status_.show(fmt::format("{}{} done, {} running, {:.1f} tokens/s", bar, done(),
                             engine_.stats().running, rate()));
  }

  double rate() const {
    return static_cast<double>(engine_.stats().output_tokens) /
           std::max(1e-9, now_seconds() - started_);
  }

  void summarize() const {
    write_to_stderr(fmt::format("{} requests, {} failed, {} tokens in {:.1f} s ({:.1f} tokens/s)\n",
                                first_line_, failed_, engine_.stats().output_tokens,
                                now_seconds() - started_, rate()));
  }

  const RunOptions& options_;
  Session& session_;
  Engine& engine_;
  const RequestDefaults& defaults_;
  Output& output_;
  LineReader reader_;
  StatusLine status_;
  double started_;
  std::deque<Line> lines_;  // read and not printed
  size_t bytes_ahead_ = 0;
  uint64_t first_line_ = 0;                  // number of lines printed before lines_
  std::map<RequestId, uint64_t> in_flight_;  // to the line's number
  uint64_t line_number_ = 0;                 // in the file, from 1
  uint64_t failed_ = 0;
  bool end_ = false, unreadable_ = false;
};

}  // namespace

Result<int> run_lines(const RunOptions& options, Session& session, const RequestDefaults& defaults,
                      Output& output) {
  LK_ASSIGN_OR_RETURN(LineReader reader, LineReader::open(*options.input));
  LineRun run(options, session, defaults, output, std::move(reader));
  return run.run();
}

}  // namespace lk
