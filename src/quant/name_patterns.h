// Lists of module names as quantization recipes write them: exact names, wildcards, regular
// expressions. Movable; const use is thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"

namespace lk {

enum class PatternStyle : uint8_t {
  // Transformers: a name covers all modules in whose path it stands as whole components; `*` stands
  // for anything; anything else that only a regular expression has makes it one, anchored in front.
  kTransformers,
  // ModelOpt: fnmatch wildcards (`*`, `?`, `[...]`); a name covers the modules below it as well.
  kModelOpt,
  // compressed-tensors: the exact path, or after "re:" a regular expression anchored in front, or
  // the class "Linear", which covers every module. Other classes are names that no module has.
  kCompressedTensors,
};

// How a list covers a path. Of several lists, the one that is more particular counts.
enum class Covered : uint8_t { kNot, kByClass, kByPattern, kByName };

class NamePatterns {
 public:
  NamePatterns() = default;
  // `what` names the list in errors: a pattern that is no regular expression, or too many.
  static Result<NamePatterns> make(const std::vector<std::string>& patterns, PatternStyle style,
                                   std::string_view what);

  Covered how(std::string_view path) const;
  bool covers(std::string_view path) const { return how(path) != Covered::kNot; }
  // The patterns that cover none of `paths` and nothing below which one of them stands.
  std::vector<std::string> unmatched(const std::vector<std::string>& paths) const;

 private:
  class Regex;
  struct Wild {
    std::string pattern;
    std::shared_ptr<const Regex> regex;  // null: a wildcard pattern
  };
  bool matches(const Wild& wild, std::string_view path) const;

  PatternStyle style_ = PatternStyle::kTransformers;
  bool everything_ = false;
  std::unordered_set<std::string> literals_;
  std::vector<Wild> wild_;
};

// Whether `pattern` (`*` anything, `?` one character, `[...]` one of) covers `path` as a whole, or
// the start of it up to a dot. Linear in text times stars: the last star alone is retried.
bool wildcard_covers(std::string_view pattern, std::string_view path);

}  // namespace lk
