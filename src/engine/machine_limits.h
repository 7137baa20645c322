// What the process may use of its machine: CPUs and memory, within its affinity and the limits of
// its control groups (versions 1 and 2). Stateless.
#pragma once

#include <cstddef>
#include <string>

namespace lk {

struct MachineLimits {
  int cpus = 1;            // of the affinity mask, or what the CPU quota comes to if that is less
  size_t available = 0;    // bytes that the process can still take
  std::string limited_by;  // "the machine" or "the control group /x", which sets `available`
};

// `root` stands before /proc and /sys (for tests). A limit that cannot be read does not limit.
MachineLimits machine_limits(const std::string& root = "");

// machine_limits().available
size_t available_memory();

}  // namespace lk
