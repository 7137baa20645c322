#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace lk {
namespace {

std::vector<int> borders_of(const std::string& text) {
  std::vector<int> borders(text.size() + 1, 0);
  for (size_t n = 1, border = 0; n < text.size(); ++n) {
    while (border > 0 && text[n] != text[border]) border = borders[border];
    if (text[n] == text[border]) ++border;
    borders[n + 1] = static_cast<int>(border);
  }
  return borders;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include), matched_(stops_.size(), 0) {
  for (const std::string& stop : stops_) borders_.push_back(borders_of(stop));
}

int StopMatcher::advance(char byte) {
  int complete = -1;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const std::string& stop = stops_[i];
    int& n = matched_[i];
    while (n > 0 && stop[n] != byte) n = borders_[i][n];
    if (stop[n] == byte) ++n;
    const bool whole = n == static_cast<int>(stop.size());
    if (whole && (complete < 0 || stop.size() > stops_[complete].size()))
      complete = static_cast<int>(i);
  }
  return complete;
}

std::string StopMatcher::push(std::string_view piece) {
  if (stopped()) return {};
  if (stops_.empty()) return std::string(piece);
  for (size_t i = 0; i < piece.size(); ++i) {
    stopped_ = advance(piece[i]);
    if (!stopped()) continue;
    held_ += piece.substr(0, i + 1);
    if (!include_) held_.resize(held_.size() - stops_[stopped_].size());
    return std::exchange(held_, {});
  }
  held_ += piece;
  const size_t hold = *std::max_element(matched_.begin(), matched_.end());
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return out;
}

std::string StopMatcher::finish() {
  std::fill(matched_.begin(), matched_.end(), 0);
  return std::exchange(held_, {});
}

}  // namespace lk
