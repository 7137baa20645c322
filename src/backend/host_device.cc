#include <atomic>
#include <cstdlib>
#include <cstring>

#include "backend/device.h"
#include "base/aligned_buffer.h"

namespace lk {
namespace {

class HostDevice : public Device {
 public:
  std::string_view name() const override { return "cpu"; }
  bool is_host() const override { return true; }

  void* allocate(size_t bytes, MemoryUse use) override {
    void* data = AlignedBuffer(bytes).release();
    allocated_[static_cast<size_t>(use)] += bytes;
    return data;
  }
  void release(void* data, size_t bytes, MemoryUse use) noexcept override {
    AlignedBuffer::adopt(static_cast<std::byte*>(data), bytes);
    allocated_[static_cast<size_t>(use)] -= bytes;
  }
  size_t allocated(MemoryUse use) const override { return allocated_[static_cast<size_t>(use)]; }

  size_t free_memory() const override { return SIZE_MAX; }

  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void clear(void* to, size_t bytes) override { std::memset(to, 0, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void synchronize() override {}
  void fill(void* to, size_t bytes, size_t, const Make& make) override {
    make({static_cast<std::byte*>(to), bytes}, 0);
  }
  void run_recorded(uint64_t, const std::function<void()>& work) override { work(); }

 private:
  std::atomic<size_t> allocated_[kMemoryUses]{};
};

}  // namespace

Device& host_device() {
  static HostDevice device;
  return device;
}

}  // namespace lk
