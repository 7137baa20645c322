#include "kernels/devices.h"

#include <fmt/format.h>

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
  LK_ASSIGN_OR_RETURN(CudaDevice * device, CudaDevice::open(ordinal));
  const size_t free = device->free_memory();
  if (free < bytes + kLeastBeside) {
    return fail(ErrorKind::kResource,
                "{} ({}) has {} of memory free, and the model takes {} and at least {} beside it",
                device->name(), device->model(), format_bytes(free), format_bytes(bytes),
                format_bytes(kLeastBeside));
  }
  return make_cuda_kernels(*device);
#else
  return unsupported("this lorikeet was built without CUDA");
#endif
}

}  // namespace

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
    return DeviceChoice{std::move(*kernels), "asked for"};
  }
  std::string why = "asked for";
  if (wish.device == "auto") {
    if (!row.empty()) {
      why = fmt::format("kernels '{}' are asked for", row);
    } else if (auto kernels = cuda_kernels(0, wish.bytes)) {
      return DeviceChoice{std::move(*kernels), "a GPU that the model fits"};
    } else {
      why = kernels.error().message;
    }
  }
  LK_ASSIGN_OR_RETURN(std::unique_ptr<Kernels> kernels, make_kernels(row, wish.threads));
  return DeviceChoice{std::move(kernels), std::move(why)};
}

}  // namespace lk
