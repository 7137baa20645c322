#include "cli/number_flags.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>

namespace lk {
namespace {

// Whether all of `text` is a number, and a T holds it.
template <typename T>
bool read_number(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && at == end;
}

}  // namespace

CLI::Option* check_seed(CLI::Option* option) {
  static constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return option->check(CLI::Validator(
      [](const std::string& text) {
        int64_t value = -1;
        if (read_number(text, value) && value >= 0) return std::string();
        return fmt::format("{} is no whole number from 0 to {}", text.substr(0, 60), kMost);
      },
      "INT >= 0"));
}

CLI::Option* check_number(CLI::Option* option, double least, double most, const char* type) {
  const std::string range = fmt::format("{:g} to {:g}", least, most);
  return option->check(CLI::Validator(
      [=](const std::string& text) {
        double value = 0;
        if (read_number(text, value) && value >= least && value <= most) return std::string();
        return fmt::format("{} is no number from {}", text.substr(0, 60), range);
      },
      type ? type : "FLOAT in " + range));
}

CLI::Option* check_bytes(CLI::Option* option) {
  return option->check(CLI::Validator(
      [](const std::string& text) {
        uint64_t value = 0;
        const auto end = text.data() + text.size();
        if (std::from_chars(text.data(), end, value).ec != std::errc::result_out_of_range)
          return std::string();
        return fmt::format("{} is over {} bytes", text.substr(0, 60),
                           std::numeric_limits<uint64_t>::max());
      },
      ""));
}

}  // namespace lk
