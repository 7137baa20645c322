#include "kernels/select.h"

#include <cstdlib>

#include "kernels/reference/reference_kernels.h"

namespace lk {
namespace {

bool always() { return true; }

constexpr KernelsRow kRows[] = {
    {"reference", "nothing", always, always, make_reference_kernels},
};

}  // namespace

std::span<const KernelsRow> kernels_table() { return kRows; }

Result<std::unique_ptr<Kernels>> make_kernels(std::string name, int threads) {
  if (name.empty()) {
    if (const char* forced = std::getenv("LORIKEET_KERNELS")) name = forced;
  }
  std::string names;
  for (const KernelsRow& row : kernels_table()) {
    if (name.empty() ? row.supported() && row.preferred() : row.name == name) {
      if (!row.supported()) {
        return unsupported("kernels '{}' need {}, which this CPU does not have", name, row.needs);
      }
      return row.make(threads);
    }
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return invalid("there are no kernels '{}'; known are {}", name, names);
}

}  // namespace lk
