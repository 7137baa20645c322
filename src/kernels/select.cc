#include "kernels/select.h"

#include <cstdlib>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa.h"
#include "kernels/reference/reference_kernels.h"

namespace lk {

// Each is defined in its own kernels/cpu/isa_<name>.cc.
namespace cpu {
extern const CpuIsa kIsaAvx2, kIsaAvx512, kIsaAvx512Bf16;
extern const CpuProduct kInt8Avx512Vnni;
}  // namespace cpu

namespace {

template <const cpu::CpuIsa& kIsa>
std::unique_ptr<Kernels> make_cpu(int threads) {
  return make_cpu_kernels(kIsa, threads);
}

// With VNNI's byte products where the CPU has them: sums of whole numbers, so the same bits.
std::unique_ptr<Kernels> make_avx512(int threads) {
  static const cpu::CpuIsa with_vnni = [] {
    cpu::CpuIsa isa = cpu::kIsaAvx512;
    isa.products[static_cast<int>(ActivationForm::kInt8)] = cpu::kInt8Avx512Vnni;
    return isa;
  }();
  return make_cpu_kernels(__builtin_cpu_supports("avx512vnni") ? with_vnni : cpu::kIsaAvx512,
                          threads);
}

// Rounded activations are exact in bfloat16 only for some scales: those forms are avx512's.
std::unique_ptr<Kernels> make_avx512bf16(int threads) {
  static const cpu::CpuIsa isa = [] {
    cpu::CpuIsa isa = cpu::kIsaAvx512Bf16;
    const auto e4m3 = static_cast<int>(ActivationForm::kE4M3);
    isa.products[e4m3] = cpu::kIsaAvx512.products[e4m3];
    isa.products[static_cast<int>(ActivationForm::kInt8)] = cpu::kInt8Avx512Vnni;
    return isa;
  }();
  return make_cpu_kernels(isa, threads);
}

bool always() { return true; }

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vnni");
}

// Rounds activations to bfloat16 inside the product: twice the speed of FMA on AMD (Zen 4 and
// later), half of it on Intel's Xeons (648 against 1,280 GFLOP/s on a 16-core one with AMX), but a
// mean |dlogprob| of 0.0101 on the small model, where the default may have 0.01: by name only.
bool by_name_only() { return false; }

constexpr KernelsRow kRows[] = {
    {"avx512bf16", "AVX-512 F/BW/VL/DQ, BF16 and VNNI", has_avx512bf16, by_name_only,
     make_avx512bf16},
    {"avx512", "AVX-512 F/BW/VL/DQ", has_avx512, always, make_avx512},
    {"avx2", "AVX2, FMA and F16C", has_avx2, always, make_cpu<cpu::kIsaAvx2>},
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
