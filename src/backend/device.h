// Where a model computes and its numbers lie: memory, copies and recorded work of one device.
// Used by one thread, the engine's, but for what says otherwise. Errors are thrown:
// std::bad_alloc where memory runs out, DeviceError where the device fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace lk {

// The device no longer computes: whoever uses it can only give up.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Memory that was set aside for a use ran out; what() is a sentence.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string text) : text_(std::make_shared<std::string>(std::move(text))) {}
  const char* what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<const std::string> text_;  // copies must not throw
};

// What memory is for; each use is accounted for by itself.
enum class MemoryUse : uint8_t { kWeights, kCache, kAdapters, kWorkspace };
inline constexpr int kMemoryUses = 4;

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;  // "cpu", "cuda:0"
  // The host reads and writes the device's memory as its own, and whatever is asked of the device
  // is done when the call returns.
  virtual bool is_host() const = 0;

  // Takes `bytes` now for a use, once, before others are allocated for it: from then on it gets its
  // memory from there alone, and neither allocating nor releasing it stops the kernels. Nothing on
  // the host.
  virtual void set_aside(size_t /*bytes*/, MemoryUse /*use*/) {}
  // Zeroed, aligned to at least 64 bytes. Thread-safe. Throws OutOfMemory where what was set aside
  // is full.
  virtual void* allocate(size_t bytes, MemoryUse use) = 0;
  // Thread-safe; work that reads the memory may still be running.
  virtual void release(void* data, size_t bytes, MemoryUse use) noexcept = 0;
  virtual size_t allocated(MemoryUse use) const = 0;
  // Bytes that can still be allocated; the largest size_t where that is the host's to say.
  virtual size_t free_memory() const = 0;

  // In order with the kernels. `from` may change once the call returns.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void clear(void* to, size_t bytes) = 0;
  // Waits until the bytes are there.
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  virtual void synchronize() = 0;
  // Throws DeviceError where the device is lost, which nothing else tells while there is no work.
  virtual void check() {}

  // Writes `bytes` at `to`, piece by piece: `make(piece, offset)` writes the bytes from `offset` on
  // into host memory. Pieces are multiples of `granule` (but for the last) and made by several
  // threads at once where the device has them. Beside the kernels, not in order with them: `to` is
  // memory that nothing reads yet. Done when the call returns. Thread-safe.
  using Make = std::function<void(std::span<std::byte> piece, size_t offset)>;
  virtual void fill(void* to, size_t bytes, size_t granule, const Make& make) = 0;

  // Runs `work`, which only launches kernels and calls copy and clear, with addresses and sizes
  // that follow from `key`. A device that can record runs a recording from the second time on,
  // until memory is released that the addresses may point to: any but that of adapters, which
  // recordings find through tables.
  virtual void run_recorded(uint64_t key, const std::function<void()>& work) = 0;
};

// The CPU: its memory is the process's.
Device& host_device();

}  // namespace lk
