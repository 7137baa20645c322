// Turns token ids into text as they come. Not thread-safe; one object for each request.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lk {

class TextStream {
 public:
  virtual ~TextStream() = default;
  // Text that became certain with this token: whole UTF-8 characters, maybe none.
  virtual std::string push(int32_t id) = 0;
  // What is left at the end.
  virtual std::string finish() = 0;
};

using TextStreamFactory = std::function<std::unique_ptr<TextStream>()>;

}  // namespace lk
