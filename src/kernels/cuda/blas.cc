#include "kernels/cuda/blas.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <map>
#include <new>
#include <optional>
#include <tuple>

#include "backend/device_buffer.h"

namespace lk::cuda {
namespace {

// What the library's documentation advises for Hopper.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr uint32_t kAlignment = 16;  // of all operands, at least

void check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw std::bad_alloc();
  throw DeviceError(fmt::format("the GPU failed: cuBLASLt, {}: {}", what,
                                std::string(cublasLtGetStatusString(status))));
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kAlignment == 0; }

// The library counts columns first: out^T = W^T^T x^T, where all the transposed matrices are what
// lies in memory.
struct Plan {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t weights, x, out;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
};

template <typename T>
void set(Plan& plan, cublasLtMatmulDescAttributes_t which, const T& value) {
  check_blas(cublasLtMatmulDescSetAttribute(&plan.product, which, &value, sizeof value),
             "describing a product");
}

template <typename T>
void set(cublasLtMatmulPreferenceOpaque_t& wishes, cublasLtMatmulPreferenceAttributes_t which,
         const T& value) {
  check_blas(cublasLtMatmulPreferenceSetAttribute(&wishes, which, &value, sizeof value),
             "describing a product");
}

void describe(Plan& plan, const BlasProduct& p) {
  const char* what = "describing a product";
  check_blas(cublasLtMatmulDescInit(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), what);
  set(plan, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (p.bias) {
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  check_blas(cublasLtMatrixLayoutInit(&plan.weights, CUDA_R_16BF, p.width, p.out_rows, p.width),
             what);
  check_blas(cublasLtMatrixLayoutInit(&plan.x, CUDA_R_16BF, p.width, p.rows, p.width), what);
  check_blas(cublasLtMatrixLayoutInit(&plan.out, CUDA_R_32F, p.out_rows, p.rows, p.stride), what);
}

}  // namespace

struct Blas::State {
  explicit State(CudaDevice& device)
      : device(device), workspace(device, kWorkspaceBytes, MemoryUse::kWorkspace) {
    check_blas(cublasLtCreate(&handle), "starting");
  }
  ~State() { cublasLtDestroy(handle); }

  void choose(Plan& plan) {
    cublasLtMatmulPreferenceOpaque_t wishes;
    check_blas(cublasLtMatmulPreferenceInit(&wishes), "describing a product");
    set(wishes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
    // Sums of several parts meet in a fixed order: not in the output, as the parts are done.
    set(wishes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE});
    for (const auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(wishes, which, kAlignment);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, &plan.product, &plan.weights, &plan.x, &plan.out,
                                       &plan.out, &wishes, 1, &found, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;
    check_blas(status, "choosing an algorithm");
    if (count > 0 && found.state == CUBLAS_STATUS_SUCCESS) plan.algorithm = found.algo;
  }

  using Shape = std::tuple<int, int, int, int64_t, bool>;
  CudaDevice& device;
  DeviceBuffer workspace;
  cublasLtHandle_t handle = nullptr;
  std::map<Shape, Plan> plans;
};

Blas::Blas(CudaDevice& device) : state_(std::make_unique<State>(device)) {}
Blas::~Blas() = default;

bool Blas::run(const BlasProduct& p) {
  State& s = *state_;
  if (!is_aligned(p.out) || !is_aligned(p.x) || p.stride * sizeof(float) % kAlignment != 0)
    return false;
  const auto [at, is_new] =
      s.plans.try_emplace({p.out_rows, p.width, p.rows, p.stride, p.bias != nullptr});
  Plan& plan = at->second;
  if (is_new) {
    describe(plan, p);
    s.choose(plan);
  }
  if (!plan.algorithm) return false;
  if (p.bias) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  const float one = 1.0f, before = p.add ? 1.0f : 0.0f;
  check_blas(cublasLtMatmul(s.handle, &plan.product, &one, p.weights, &plan.weights, p.x, &plan.x,
                            &before, p.out, &plan.out, p.out, &plan.out, &*plan.algorithm,
                            s.workspace.data(), kWorkspaceBytes, s.device.stream()),
             "a product with weights");
  return true;
}

}  // namespace lk::cuda
