#include "bench/arguments.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace lk::bench {

Arguments::Arguments(std::string program, std::string usage)
    : program_(std::move(program)), usage_(std::move(usage)) {}

void Arguments::number(std::string flag, int& value, int least, int most) {
  const auto set = [this, flag, &value, least, most](const std::string& text) {
    value = as_number(flag, text, least, most);
  };
  flags_.push_back({flag, set});
}

void Arguments::text(std::string flag, std::string& value) {
  flags_.push_back({std::move(flag), [&value](const std::string& text) { value = text; }});
}

void Arguments::choice(std::string flag, std::string& value, std::vector<std::string> choices) {
  const auto set = [this, flag, &value, choices](const std::string& text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end())
      die(fmt::format("{} is {}, expected {}", flag, text, fmt::join(choices, " or ")));
    value = text;
  };
  flags_.push_back({flag, set});
}

std::vector<std::string> Arguments::parse(int argc, const char* const* argv, size_t least,
                                          size_t most, std::vector<std::string>* rest) const {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--" && rest) {
      rest->assign(argv + i + 1, argv + argc);
      break;
    }
    if (!word.starts_with("--")) {
      words.push_back(word);
      continue;
    }
    const auto flag = std::find_if(flags_.begin(), flags_.end(),
                                   [&](const Flag& known) { return known.name == word; });
    if (flag == flags_.end()) die_with_usage("there is no flag " + word);
    if (++i == argc) die_with_usage(word + " wants a value");
    flag->set(argv[i]);
  }
  if (words.size() < least)
    die_with_usage(fmt::format("{} words of {} given", words.size(), least));
  if (words.size() > most) die_with_usage("there is no place for " + words[most]);
  return words;
}

int Arguments::as_number(std::string_view what, const std::string& word, int least,
                         int most) const {
  int value = 0;
  const char* const end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc{} || at != end || value < least || value > most)
    die(fmt::format("{} is {}, expected a whole number from {} to {}", what, word, least, most));
  return value;
}

void Arguments::die(const std::string& sentence) const {
  std::fprintf(stderr, "%s: %s\n", program_.c_str(), sentence.c_str());
  std::exit(2);
}

void Arguments::die_with_usage(const std::string& sentence) const {
  die(fmt::format("{}; usage: {} {}", sentence, program_, usage_));
}

}  // namespace lk::bench
