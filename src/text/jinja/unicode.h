// Text as Python sees it, as code points, over UTF-8 storage. A byte that is no UTF-8 counts as one
// code point. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lk::jinja {

bool is_ascii(std::string_view text);
size_t code_point_count(std::string_view text);
// Bytes of the code point that starts at `at` (1 for a stray byte).
size_t code_point_bytes(std::string_view text, size_t at);
// The code point at byte `at`; -1 for a stray byte. `*bytes` is its length.
int32_t code_point_at(std::string_view text, size_t at, size_t* bytes);
// Byte offset of code point `index`, or the size if there are fewer.
size_t byte_offset(std::string_view text, size_t index);
std::vector<std::string_view> code_points(std::string_view text);
void append_utf8(std::string* out, int32_t code_point);

bool is_space(int32_t code_point);  // str.isspace
std::string_view strip_space(std::string_view text, bool left, bool right);
// Strips the code points that occur in `set`.
std::string_view strip_set(std::string_view text, std::string_view set, bool left, bool right);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_capitalized(std::string_view text);
std::string to_title(std::string_view text);  // str.title, not Jinja's filter
std::string to_swapped_case(std::string_view text);

bool is_cased(int32_t cp);
bool is_upper(int32_t cp);
bool is_lower(int32_t cp);
bool is_alpha(int32_t cp);
bool is_decimal(int32_t cp);
bool is_digit(int32_t cp);
bool is_numeric(int32_t cp);
bool is_printable(int32_t cp);
inline bool is_alnum(int32_t cp) { return is_alpha(cp) || is_numeric(cp); }
bool is_identifier(std::string_view text);

// find() in linear time whatever the needle; the standard library's is quadratic.
size_t find_text(std::string_view text, std::string_view wanted, size_t from = 0);

// str.splitlines: ends at \n, \r, \r\n, \v, \f, \x1c-\x1e, \x85, U+2028, U+2029.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

}  // namespace lk::jinja
