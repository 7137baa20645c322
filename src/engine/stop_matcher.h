// Cuts a growing text before (or after) the first stop string. Not thread-safe; one object for each
// request.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lk {

// The stop string that is complete first wins (the longest of several that end together), so the
// result does not depend on how the text was cut into pieces. Costs a few steps for each byte and
// stop string (Knuth, Morris, Pratt 1977).
class StopMatcher {
 public:
  // No stop string may be empty. `include`: the stop string stays in the text.
  explicit StopMatcher(std::vector<std::string> stops, bool include = false);

  // Adds `piece` and returns what is certain to belong to the text: nothing that a stop string may
  // begin with is let out.
  std::string push(std::string_view piece);
  // The text has ended, or a boundary comes that no stop string spans: returns what was held back.
  std::string finish();
  bool stopped() const { return stopped_ >= 0; }
  // The stop string that ended the text; empty if none did.
  std::string stop() const { return stopped() ? stops_[stopped_] : std::string(); }

 private:
  // Feeds one byte; the longest stop string that it completes, or -1.
  int advance(char byte);

  std::vector<std::string> stops_;
  bool include_;
  std::vector<std::vector<int>> borders_;  // [i][n]: longest proper border of n bytes of stops_[i]
  std::vector<int> matched_;               // bytes of each stop string that the text ends with
  std::string held_;                       // shorter than the longest stop string
  int stopped_ = -1;                       // index in stops_
};

}  // namespace lk
