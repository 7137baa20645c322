// Tokenizer speed, in CPU time of the process (one thread): load a tokenizer.json, encode a file in
// one call and in pieces of about 2 KB (whole lines), one call each. tools/bench_tokenizers.py does
// the same with another library.
//   tokenizer_bench TOKENIZER.json TEXT [repeats]
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "base/mmap_file.h"
#include "bench/arguments.h"
#include "text/tokenizer.h"

namespace {

constexpr size_t kPiece = 2000;

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::vector<std::string_view> cut(std::string_view text) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t newline = text.find('\n', std::min(kPiece, text.size()));
    const size_t n = newline == text.npos ? text.size() : newline + 1;
    pieces.push_back(text.substr(0, n));
    text.remove_prefix(n);
  }
  return pieces;
}

// MB/s of the first and of the median round.
std::string measure(const lk::Tokenizer& tokenizer, const std::vector<std::string_view>& pieces,
                    int repeats) {
  std::vector<double> times;
  size_t bytes = 0, tokens = 0;
  for (const auto piece : pieces) bytes += piece.size();
  for (int i = 0; i < repeats; ++i) {
    const double start = cpu_seconds();
    tokens = 0;
    for (const auto piece : pieces) {
      const auto ids = tokenizer.encode(piece);
      if (!ids) return ids.error().message;
      tokens += ids->size();
    }
    times.push_back(cpu_seconds() - start);
  }
  const double first = times[0];
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return fmt::format("{} tokens, first {:.1f} MB/s, median {:.1f} MB/s", tokens,
                     bytes / 1e6 / first, bytes / 1e6 / times[repeats / 2]);
}

}  // namespace

int main(int argc, char** argv) {
  const lk::bench::Arguments arguments("tokenizer_bench", "TOKENIZER.json TEXT [REPEATS]");
  const std::vector<std::string> words = arguments.parse(argc, argv, 2, 3);
  const int repeats = words.size() > 2 ? arguments.as_number("REPEATS", words[2], 1, 100'000) : 5;
  const double start = cpu_seconds();
  const auto tokenizer = lk::Tokenizer::load(words[0]);
  const double load = cpu_seconds() - start;
  const auto text = lk::read_file(words[1]);
  if (!tokenizer || !text) {
    fmt::print(stderr, "{}\n", tokenizer ? text.error().message : tokenizer.error().message);
    return 2;
  }
  fmt::print("load {:.0f} ms\n", load * 1e3);
  fmt::print("pieces: {}\n", measure(**tokenizer, cut(*text), repeats));
  fmt::print("whole:  {}\n", measure(**tokenizer, {*text}, repeats));
  return 0;
}
