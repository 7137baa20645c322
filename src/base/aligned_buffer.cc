#include "base/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace lk {
namespace {
// From here on a buffer gets pages of its own, so that freeing it gives the memory back at once.
constexpr size_t kMapThreshold = size_t{1} << 20;
constexpr size_t kHugePage = size_t{2} << 20;
}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes >= kMapThreshold) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    if (bytes >= 4 * kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(data);
    return;
  }
  data_ = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  if (!data_) throw std::bad_alloc();
  std::memset(data_, 0, bytes);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::byte* AlignedBuffer::release() {
  size_ = 0;
  return std::exchange(data_, nullptr);
}

AlignedBuffer AlignedBuffer::adopt(std::byte* data, size_t bytes) {
  AlignedBuffer buffer;
  buffer.data_ = data;
  buffer.size_ = bytes;
  return buffer;
}

AlignedBuffer::~AlignedBuffer() {
  if (size_ >= kMapThreshold)
    munmap(data_, size_);
  else
    std::free(data_);
}

}  // namespace lk
