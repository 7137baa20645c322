#include "kernels/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "base/bytes.h"
#include "kernels/select.h"

#ifdef LORIKEET_CUDA
#include "backend/cuda/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"
#endif

namespace lk {
namespace {

// Beside the weights: activations, a KV cache worth the name, the driver's own.
constexpr size_t kLeastBeside = size_t{2} << 30;

// N of cuda:N, 0 of cuda.
std::optional<int> cuda_ordinal(std::string_view name) {
  constexpr std::string_view kCuda = "cuda";
  if (name == kCuda) return 0;
  if (!name.starts_with("cuda:")) return std::nullopt;
  name.remove_prefix(kCuda.size() + 1);
  int ordinal = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), ordinal);
  if (error != std::errc() || end != name.data() + name.size() || ordinal < 0) return std::nullopt;
  return ordinal;
}

Result<std::unique_ptr<Kernels>> cuda_kernels([[maybe_unused]] int ordinal,
                                              [[maybe_unused]] size_t bytes) {
#ifdef LORIKEET_CUDA
  const bool ours = !CudaDevice::is_open(ordinal);
  LK_ASSIGN_OR_RETURN(CudaDevice * device, CudaDevice::open(ordinal));
  const size_t free = device->free_memory();
  if (free >= bytes + kLeastBeside) return make_cuda_kernels(*device);
  Error error{ErrorKind::kResource,
              fmt::format("{} ({}) has {} of memory free, and the model takes {} and at least {} "
                          "beside it",
                          device->name(), device->model(), format_bytes(free), format_bytes(bytes),
                          format_bytes(kLeastBeside))};
  if (ours) CudaDevice::close(ordinal);  // what the driver took there is for others
  return tl::unexpected<Error>(std::move(error));
#else
  return unsupported("this lorikeet was built without CUDA");
#endif
}

int gpu_count() {
#ifdef LORIKEET_CUDA
  return CudaDevice::count();
#else
  return 0;
#endif
}

}  // namespace

Result<DeviceChoice> first_gpu(int count, const OpenGpu& open) {
  Error refused{ErrorKind::kResource, ""};
  for (int ordinal = 0; ordinal < std::max(1, count); ++ordinal) {
    auto kernels = open(ordinal);
    if (kernels) {
      return DeviceChoice{.kernels = std::move(*kernels),
                          .why = ordinal == 0 ? std::string("the first GPU, which the model fits")
                                              : fmt::format("the first GPU that the model fits: {}",
                                                            refused.message),
                          .among = true};
    }
    refused.kind = kernels.error().kind;
    refused.message += (ordinal > 0 ? "; " : "") + kernels.error().message;
  }
  return tl::unexpected<Error>(std::move(refused));
}

Status check_device_name(const std::string& name) {
  if (name == "auto" || name == "cpu" || cuda_ordinal(name)) return {};
  return invalid("there is no device '{}'; known are auto, cpu, cuda and cuda:N", name);
}

Result<DeviceChoice> choose_device(const DeviceWish& wish) {
  LK_RETURN_IF_ERROR(check_device_name(wish.device));
  const char* forced = std::getenv("LORIKEET_KERNELS");
  const std::string row = wish.kernels.empty() && forced ? forced : wish.kernels;
  if (const auto ordinal = cuda_ordinal(wish.device)) {
    if (!row.empty())
      return invalid("kernels '{}' are the CPU's, and --device asks for {}", row, wish.device);
    auto kernels = cuda_kernels(*ordinal, wish.bytes);
    if (!kernels)
      return fail(kernels.error().kind, "--device {}: {}", wish.device, kernels.error().message);
    return DeviceChoice{.kernels = std::move(*kernels), .why = "asked for"};
  }
  std::string why = "asked for";
  bool among = false;
  if (wish.device == "auto") {
    if (!row.empty()) {
      why = fmt::format("kernels '{}' are asked for", row);
    } else {
      auto gpu =
          first_gpu(gpu_count(), [&](int ordinal) { return cuda_kernels(ordinal, wish.bytes); });
      if (gpu) return std::move(*gpu);
      why = gpu.error().message;
      among = gpu_count() > 0;
    }
  }
  LK_ASSIGN_OR_RETURN(std::unique_ptr<Kernels> kernels, make_kernels(row, wish.threads));
  return DeviceChoice{.kernels = std::move(kernels), .why = std::move(why), .among = among};
}

}  // namespace lk
