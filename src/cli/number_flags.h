// Checks for flags that take a number. CLI11 reads one that no type holds as the nearest that it
// does, and takes NaN for inside every range; these refuse both, and name the range. Stateless.
#pragma once

namespace CLI {
class Option;
}

namespace lk {

// A whole number from 0 to 2^63 - 1.
CLI::Option* check_seed(CLI::Option* option);
// A finite number from `least` to `most`. `type`: what help calls it; null: the range.
CLI::Option* check_number(CLI::Option* option, double least, double most,
                          const char* type = nullptr);
// A count of bytes, perhaps with a unit, whose digits 64 bits hold. Ahead of CLI::AsSizeValue.
CLI::Option* check_bytes(CLI::Option* option);

}  // namespace lk
