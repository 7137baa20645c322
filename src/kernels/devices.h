// Which device computes a model: what --device asks for, or the first that fits. Stateless.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "kernels/kernels.h"

namespace lk {

struct DeviceWish {
  std::string device = "cpu";  // cpu, cuda, cuda:N, or auto: the first GPU that fits, else the CPU
  std::string kernels;         // row of kernels_table(); those are the CPU's
  int threads = 0;             // of the CPU
  size_t bytes = 0;            // that the weights take
};

struct DeviceChoice {
  std::unique_ptr<Kernels> kernels;
  std::string why;     // in words: this device, and why not those before
  bool among = false;  // it was chosen among GPUs and the CPU, not asked for
};

// LORIKEET_KERNELS stands for a `kernels` that is empty, and asks for the CPU as that does. Errors:
// kInvalid for a device that has no such name, kUnsupported or kResource, in one sentence, if it is
// not there or lacks memory.
Result<DeviceChoice> choose_device(const DeviceWish& wish);

// The first of `count` GPUs that `open` gives, and why not those before. Errors: those of all that
// were tried, in one sentence; of `count` 0 that of the first, which is not there.
using OpenGpu = std::function<Result<std::unique_ptr<Kernels>>(int ordinal)>;
Result<DeviceChoice> first_gpu(int count, const OpenGpu& open);

// Names that --device takes. Errors: kInvalid.
Status check_device_name(const std::string& name);

}  // namespace lk
