// Sizes in bytes as people write them. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lk {

// "1073741824", "4GiB", "4G", "512M", "1.5 GiB", "100KB": K, M, G and T, with or without "i" and
// "B", in either case, are powers of 1024; no letter means bytes; a fraction is rounded down.
// Errors: kInvalid for anything else, and for sizes over 2^62 bytes.
Result<size_t> parse_bytes(std::string_view text);

// "512 bytes", "1.5 MiB", "12.8 GiB".
std::string format_bytes(size_t bytes);

}  // namespace lk
