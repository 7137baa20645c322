// Command lines of the benchmarks: words, and flags with a value each. Whatever is wrong with them
// is told in a sentence that ends the program with 2. Not thread-safe.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lk::bench {

inline constexpr int kMostThreads = 4096;

class Arguments {
 public:
  // `usage`: what stands behind the program's name.
  Arguments(std::string program, std::string usage);
  Arguments(const Arguments&) = delete;  // flags hold on to it

  // Flags: each sets its value where it is given. A number is whole and from `least` to `most`.
  void number(std::string flag, int& value, int least, int most);
  void text(std::string flag, std::string& value);
  // One of `choices`.
  void choice(std::string flag, std::string& value, std::vector<std::string> choices);

  // Reads the command line: from `least` to `most` words that are no flags, in order. What stands
  // behind "--" is put into `rest`, where the program takes any.
  std::vector<std::string> parse(int argc, const char* const* argv, size_t least, size_t most,
                                 std::vector<std::string>* rest = nullptr) const;

  // A word as a whole number from `least` to `most`.
  int as_number(std::string_view what, const std::string& word, int least, int most) const;

  [[noreturn]] void die(const std::string& sentence) const;

 private:
  struct Flag {
    std::string name;
    std::function<void(const std::string&)> set;
  };
  [[noreturn]] void die_with_usage(const std::string& sentence) const;

  std::string program_, usage_;
  std::vector<Flag> flags_;
};

}  // namespace lk::bench
