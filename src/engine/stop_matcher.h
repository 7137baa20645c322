// Cuts a growing text before the first stop string. Not thread-safe; one object for each request.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lk {

// The stop string that is complete first wins (the longest of several that end together), so the
// result does not depend on how the text was cut into pieces.
class StopMatcher {
 public:
  // No stop string may be empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds `piece` and returns what is certain to belong to the text: nothing that a stop string may
  // begin with is let out.
  std::string push(std::string_view piece);
  // The text has ended without a stop string: returns what was held back.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // shorter than the longest stop string
  bool stopped_ = false;
};

}  // namespace lk
