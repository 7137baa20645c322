// A device with memory of its own, as far as the model can tell: the host's, poisoned. For tests.
#pragma once

#include <cstring>
#include <map>

#include "backend/device.h"

namespace lk::test {

class SeparateDevice : public Device {
 public:
  std::string_view name() const override { return "separate"; }
  bool is_host() const override { return false; }
  void* allocate(size_t bytes, MemoryUse use) override {
    bytes_[use] += bytes;
    return host_device().allocate(bytes, use);
  }
  void release(void* data, size_t bytes, MemoryUse use) noexcept override {
    bytes_[use] -= bytes;
    host_device().release(data, bytes, use);
  }
  size_t allocated(MemoryUse use) const override {
    const auto at = bytes_.find(use);
    return at == bytes_.end() ? 0 : at->second;
  }
  size_t free_memory() const override { return size_t{1} << 30; }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void clear(void* to, size_t bytes) override { std::memset(to, 0, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void synchronize() override {}
  void fill(void* to, size_t bytes, size_t, const Make& make) override {
    make({static_cast<std::byte*>(to), bytes}, 0);
  }
  void run_recorded(uint64_t key, const std::function<void()>& work) override {
    ++recorded[key];
    work();
  }

  std::map<uint64_t, int> recorded;  // runs by key

 private:
  std::map<MemoryUse, size_t> bytes_;
};

}  // namespace lk::test
