// Prints which kernels ran and which were only compiled; `--bench` makes the cases print their
// speed as well.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "kernels/select.h"

namespace lk::test {
bool bench = false;
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--bench") == 0) lk::test::bench = true;
  }
  for (const lk::KernelsRow& row : lk::kernels_table()) {
    std::printf("kernels %-10s %s\n", std::string(row.name).c_str(),
                row.supported() ? "tested here" : "compiled only");
  }
  return RUN_ALL_TESTS();
}
