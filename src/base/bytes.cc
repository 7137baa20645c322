#include "base/bytes.h"

#include <charconv>
#include <cmath>

namespace lk {
namespace {

constexpr double kMostBytes = 0x1p62;

// 0 for no unit that is known.
double unit_size(std::string_view unit) {
  if (!unit.empty() && (unit.back() | 0x20) == 'b') unit.remove_suffix(1);
  if (unit.empty()) return 1;
  if (unit.size() == 2 && (unit.back() | 0x20) == 'i') unit.remove_suffix(1);
  if (unit.size() != 1) return 0;
  switch (unit[0] | 0x20) {
    case 'k':
      return 0x1p10;
    case 'm':
      return 0x1p20;
    case 'g':
      return 0x1p30;
    case 't':
      return 0x1p40;
    default:
      return 0;
  }
}

}  // namespace

Result<size_t> parse_bytes(std::string_view text) {
  const std::string_view shown = text.substr(0, 40);
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const double size = unit_size(unit);
  if (error != std::errc() || !std::isfinite(value) || std::signbit(value) || size == 0) {
    return invalid("'{}' is no size in bytes, such as 512M, 4GiB or 1073741824", shown);
  }
  if (value * size > kMostBytes) return invalid("'{}' is more than any machine has", shown);
  return static_cast<size_t>(value * size);
}

std::string format_bytes(size_t bytes) {
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) / 1024;
  const char* unit = "KiB";
  for (const char* next : {"MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return fmt::format("{:.1f} {}", value, unit);
}

}  // namespace lk
