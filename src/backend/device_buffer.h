// Zeroed memory of a device. Movable, owns its bytes; the device must outlive it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "backend/device.h"

namespace lk {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device& device, size_t bytes, MemoryUse use)
      : device_(&device), size_(bytes), use_(use) {
    if (bytes > 0) data_ = device.allocate(bytes, use);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(other.device_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        use_(other.use_) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this == &other) return *this;
    clear();
    device_ = other.device_;
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    use_ = other.use_;
    return *this;
  }
  ~DeviceBuffer() { clear(); }

  size_t size() const { return size_; }
  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  // Makes room for at least `bytes`; contents are lost when it grows.
  void reserve(Device& device, size_t bytes, MemoryUse use = MemoryUse::kWorkspace) {
    if (bytes <= size_) return;
    *this = DeviceBuffer();
    *this = DeviceBuffer(device, bytes + bytes / 4, use);
  }

 private:
  void clear() {
    if (data_) device_->release(data_, size_, use_);
    data_ = nullptr;
    size_ = 0;
  }

  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
  MemoryUse use_ = MemoryUse::kWorkspace;
};

}  // namespace lk
