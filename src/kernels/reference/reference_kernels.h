// Plain loops over weights as they lie in the file: the specification of every stage and the last
// row of the table. Slow.
#pragma once

#include <memory>

#include "kernels/kernels.h"

namespace lk {

std::unique_ptr<Kernels> make_reference_kernels(int threads);

}  // namespace lk
