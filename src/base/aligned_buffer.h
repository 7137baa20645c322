// Zeroed memory aligned for vector loads; large ones are mapped with transparent huge pages.
// Movable, owns its bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lk {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);  // throws std::bad_alloc
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  // Gives the bytes away, and takes such bytes back.
  std::byte* release();
  static AlignedBuffer adopt(std::byte* data, size_t bytes);

  size_t size() const { return size_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }
  // Makes room for at least `bytes`; contents are lost when it grows.
  void reserve(size_t bytes) {
    if (bytes > size_) *this = AlignedBuffer(bytes + bytes / 4);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lk
