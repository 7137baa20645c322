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
  // What is left at the end, or before a boundary. The stream can go on afterwards.
  virtual std::string finish() = 0;
  // A token without text that parts the text before it from the text after it: a special token
  // that is skipped. It is not pushed.
  virtual bool boundary(int32_t) const { return false; }
};

// Thread-safe. `skip_special`: Request::skip_special.
using TextStreamFactory = std::function<std::unique_ptr<TextStream>(bool skip_special)>;

}  // namespace lk
