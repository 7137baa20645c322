// The table of Kernels implementations on this machine, and the choice among them. Stateless.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/kernels.h"

namespace lk {

struct KernelsRow {
  std::string_view name;   // "reference", "avx2", "avx512", "avx512bf16"
  std::string_view needs;  // CPU features in words
  bool (*supported)();     // this CPU has them
  bool (*preferred)();     // faster than the next row on this CPU
  std::unique_ptr<Kernels> (*make)(int threads);
};

// Best first; the reference is the last row and runs everywhere.
std::span<const KernelsRow> kernels_table();

// `name` empty: LORIKEET_KERNELS from the environment, else the first supported and preferred row.
// An impossible choice is refused with the reason. `threads` 0: all CPUs of the process.
Result<std::unique_ptr<Kernels>> make_kernels(std::string name, int threads);

}  // namespace lk
