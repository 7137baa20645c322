#include "engine/machine_limits.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

namespace lk {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();
// Version 1 writes "no limit" as the largest multiple of a page.
constexpr size_t kMostMemory = size_t{1} << 60;

std::optional<size_t> number_in(const std::string& path) {
  std::ifstream file(path);
  size_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

// The value behind `key` in a file of lines "key value".
size_t value_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name, rest;
  for (size_t value = 0; file >> name >> value; std::getline(file, rest)) {
    if (name == key) return value;
  }
  return 0;
}

struct Group {
  std::string controllers;  // empty: version 2
  std::string path;
};

// Lines "number:controllers:path".
std::vector<Group> groups_of_process(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::vector<Group> groups;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    groups.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
  }
  return groups;
}

// The path and everything above it: "/a/b", "/a", "". A container may see its own group at the
// root.
std::vector<std::string> upwards(std::string path) {
  std::vector<std::string> out;
  while (true) {
    if (path == "/") path.clear();
    out.push_back(path);
    if (path.empty()) return out;
    path.resize(path.rfind('/') == path.npos ? 0 : path.rfind('/'));
  }
}

// Where a version 1 hierarchy is mounted; empty if `group` has no such controller.
std::string mount_of(const Group& group, const std::string& controller) {
  std::istringstream names(group.controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == controller) return "/sys/fs/cgroup/" + controller;
  }
  return {};
}

struct MemoryFiles {
  const char *limit, *used, *cache;
};

// Pages of files that nobody touched lately are given back when memory runs short.
void limit_memory(const std::string& folder, const std::string& path, const MemoryFiles& files,
                  MachineLimits& limits) {
  const auto limit = number_in(folder + files.limit), used = number_in(folder + files.used);
  if (!limit || *limit >= kMostMemory) return;
  const size_t cache = value_of(folder + "/memory.stat", files.cache);
  const size_t taken = used.value_or(0) - std::min(used.value_or(0), cache);
  const size_t left = *limit - std::min(*limit, taken);
  if (left >= limits.available) return;
  limits.available = left;
  limits.limited_by = "the control group " + (path.empty() ? "/" : path);
}

void limit_cpus(double quota, double period, MachineLimits& limits) {
  if (quota <= 0 || period <= 0) return;
  limits.cpus = std::min(limits.cpus, std::max(1, static_cast<int>(std::min(quota / period, 1e6))));
}

int affinity_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

MachineLimits machine_limits(const std::string& root) {
  MachineLimits limits;
  limits.cpus = affinity_cpus();
  const size_t kib = value_of(root + "/proc/meminfo", "MemAvailable:");
  limits.available = kib > 0 ? kib << 10 : kNone;
  limits.limited_by = "the machine";
  for (const Group& group : groups_of_process(root)) {
    for (const std::string& path : upwards(group.path)) {
      if (group.controllers.empty()) {
        const std::string folder = root + "/sys/fs/cgroup" + path;
        limit_memory(folder, path, {"/memory.max", "/memory.current", "inactive_file"}, limits);
        std::ifstream cpu(folder + "/cpu.max");
        double quota = 0, period = 0;
        if (cpu >> quota >> period) limit_cpus(quota, period, limits);
        continue;
      }
      if (const std::string mount = mount_of(group, "memory"); !mount.empty()) {
        limit_memory(root + mount + path, path,
                     {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"},
                     limits);
      }
      if (const std::string mount = mount_of(group, "cpu"); !mount.empty()) {
        const std::string folder = root + mount + path;
        std::ifstream quota_file(folder + "/cpu.cfs_quota_us"),
            period_file(folder + "/cpu.cfs_period_us");
        double quota = 0, period = 0;
        if (quota_file >> quota && period_file >> period) limit_cpus(quota, period, limits);
      }
    }
  }
  return limits;
}

size_t available_memory() { return machine_limits().available; }

}  // namespace lk
