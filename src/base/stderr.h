// Standard error, unbuffered. Thread-safe: a short text comes out in one piece.
#pragma once

#include <string_view>

namespace lk {

// Text as it is; dropped where stderr cannot be written.
void write_to_stderr(std::string_view text);

}  // namespace lk
