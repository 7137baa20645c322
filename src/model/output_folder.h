// A folder that a command fills: made or empty at the start, and as it was before unless keep() is
// called. Removes what stands in it, so one object at a time owns a folder. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace lk {

class OutputFolder {
 public:
  // `path` is made where it is absent. `sources`: folders that are read; `path` may be none of
  // them. Errors: it is one, or is not empty (told apart: a whole checkpoint, a whole adapter, and
  // the part that a killed command leaves, weights without their config), I/O.
  static Result<OutputFolder> make(const std::string& path,
                                   const std::vector<std::string>& sources = {});
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&&) = delete;
  // Removes the content, and the folders that make() made, unless they are kept.
  ~OutputFolder();
  void keep() { kept_ = true; }

 private:
  OutputFolder() = default;
  std::string path_;
  std::vector<std::string> made_;  // folders that were not there before, the innermost first
  bool filled_ = false;            // was empty: what stands in it now is this command's
  bool kept_ = true;
};

// An error if `path` lies inside the folder `source`, as a copy or a second look at the source
// would then meet its own output. Links are followed.
Status check_outside(const std::string& path, const std::string& source);

}  // namespace lk
