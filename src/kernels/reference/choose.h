// Kernels::choose in plain loops: what devices that choose tokens are held to. Stateless.
#pragma once

#include "kernels/kernels.h"

namespace lk::reference {

// All pointers are the host's.
void choose(const ChooseArgs& args);

}  // namespace lk::reference
