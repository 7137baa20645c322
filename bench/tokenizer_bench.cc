// Tokenizer speed: seconds to load a tokenizer.json, MB/s to encode a file in one call.
//   tokenizer_bench TOKENIZER.json TEXT [repeats]
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/mmap_file.h"
#include "text/tokenizer.h"

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenizer_bench TOKENIZER.json TEXT [repeats]\n");
    return 2;
  }
  auto start = std::chrono::steady_clock::now();
  const auto tokenizer = lk::Tokenizer::load(argv[1]);
  const double load = seconds_since(start);
  const auto text = lk::read_file(argv[2]);
  if (!tokenizer || !text) {
    fmt::print(stderr, "{}\n", tokenizer ? text.error().message : tokenizer.error().message);
    return 2;
  }
  const int repeats = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  const double megabytes = static_cast<double>(text->size()) / 1e6;
  std::vector<double> times;
  size_t tokens = 0;
  for (int i = 0; i < repeats; ++i) {
    start = std::chrono::steady_clock::now();
    const auto ids = (*tokenizer)->encode(*text);
    times.push_back(seconds_since(start));
    if (!ids) {
      fmt::print(stderr, "{}\n", ids.error().message);
      return 2;
    }
    tokens = ids->size();
  }
  const double cold = times[0];
  std::sort(times.begin(), times.end());
  fmt::print("load {:.0f} ms, {} tokens, first {:.1f} MB/s, median of {} {:.1f} MB/s\n", load * 1e3,
             tokens, megabytes / cold, repeats, megabytes / times[times.size() / 2]);
  return 0;
}
